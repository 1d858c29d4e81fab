# frozen_string_literal: true

# Sidekiq's side: the same jobs as body.py. `sidekiq -r sidekiq_jobs.rb` is the worker.

require "json"
require "sidekiq"
require_relative "meter"

if ENV["BENCH_LINES"]
  Sidekiq.logger.formatter = Sidekiq::Logger::Formatters::JSON.new
else
  Sidekiq.logger.level = Logger::WARN
end
# Or this version of the client writes a warning at each push, too many for a log.
Redis.sadd_returns_boolean = false if Redis.respond_to?(:sadd_returns_boolean=)

IO_S = 0.010
DOCUMENT = File.read(File.join(__dir__, "document.json"))

class NoopWorker
  include Sidekiq::Worker

  def perform
    Meter.hit
  end
end

class CpuWorker
  include Sidekiq::Worker

  def perform
    Meter.begin
    text = DOCUMENT
    5.times { text = JSON.generate(JSON.parse(text)) }
    Sidekiq.redis { |redis| redis.incr("bench:incr") }
    Meter.hit
  end
end

class IoWorker
  include Sidekiq::Worker

  def perform
    Meter.begin
    sleep(IO_S)
    Meter.hit
  end
end

class PayloadWorker
  include Sidekiq::Worker

  def perform(_text)
    Meter.hit
  end
end

# A plain job beside those of guideline_jobs.py.
class GuidelineWorker
  include Sidekiq::Worker

  def perform(_number, _records = nil)
    Meter.hit
  end
end

class LatencyWorker
  include Sidekiq::Worker

  def perform(sent)
    Meter.note(Meter.clock - sent)
    Meter.hit
  end
end
