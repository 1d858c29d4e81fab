# frozen_string_literal: true

# The Ruby side of the interop tests, on the real Sidekiq gem.
#
#   ruby ruby_side.rb              a console: one JSON command per line in, one JSON answer per line out
#   sidekiq -r ./ruby_side.rb ...  a server with the workers below
#
# A command is {"do": NAME, ...}; the answer is {"ok": RESULT} or {"error": TEXT}.

require "base64"
require "json"
require "sidekiq"
require "sidekiq/api"
require "sidekiq/scheduled"
require "zlib"

Sidekiq.strict_args!
Sidekiq.logger.level = Logger::WARN
SIDEKIQ = Gem::Version.new(Sidekiq::VERSION)

def since?(version)
  SIDEKIQ >= Gem::Version.new(version)
end

require "sidekiq/metrics/query" if since?("7")

Sidekiq.configure_server do |config|
  config.on(:startup) { $stdout.puts("ready for interop") || $stdout.flush }
end

def note(worker, *args)
  Sidekiq.redis { |redis| redis.rpush("interop:ruby", JSON.generate([worker, *args])) }
end

# GitLab's size limiter, written after its description: what a Ruby client of such a fleet does around each push.
class SizeLimiter
  LARGE = Class.new(StandardError)

  class << self
    attr_accessor :threshold, :limit
  end

  def call(_worker, job, _queue, _pool = nil)
    judge(job) if self.class.threshold && !job["size_limiter"]
    yield
  end

  def self.decompress(job)
    return job unless job["compressed"]
    raise LARGE, "a conflict" unless job["args"].size == 1
    text = Zlib::Inflate.inflate(Base64.strict_decode64(job["args"].first))
    job.merge("args" => JSON.parse(text)).reject { |name, _| %w[compressed original_job_size_bytes].include?(name) }
  end

  private

  def judge(job)
    job["size_limiter"] = "validated"
    text = JSON.generate(job["args"])
    size = text.bytesize
    if size >= self.class.threshold && !job["compressed"]
      packed = Base64.strict_encode64(Zlib::Deflate.deflate(text, 5))
      job.merge!("args" => [packed], "compressed" => true, "original_job_size_bytes" => size)
      size = JSON.generate(job["args"]).bytesize
    end
    raise LARGE, "#{size} bytes" if size > self.class.limit
  end
end

[:configure_client, :configure_server].each do |configure|
  Sidekiq.public_send(configure) { |config| config.client_middleware { |chain| chain.add(SizeLimiter) } }
end

# The trace of the running job or of the console, as the instrumentations of OpenTelemetry and of Sentry handle it: the client writes
# W3C's fields at the top of the payload, and Sentry's headers as an object unless they are there; the server reads both.
module Traces
  FIELDS = %w[traceparent tracestate baggage trace_propagation_headers].freeze

  class << self
    attr_accessor :current
  end

  class Client
    def call(_worker, job, _queue, _pool = nil)
      (Traces.current || {}).each { |name, value| name == "trace_propagation_headers" ? job[name] ||= value : job[name] = value }
      yield
    end
  end

  class Server
    def call(_worker, job, _queue)
      found = job.slice(*FIELDS)
      Sidekiq.redis { |redis| redis.rpush("interop:traces", JSON.generate(found)) } unless found.empty?
      Traces.current = found
      yield
    ensure
      Traces.current = nil
    end
  end
end

[:configure_client, :configure_server].each do |configure|
  Sidekiq.public_send(configure) { |config| config.client_middleware { |chain| chain.add(Traces::Client) } }
end
Sidekiq.configure_server { |config| config.server_middleware { |chain| chain.add(Traces::Server) } }

class EchoWorker
  include Sidekiq::Worker

  def perform(*args)
    note("EchoWorker", *args)
  end
end

class PlainWorker
  include Sidekiq::Worker

  def perform(*args)
    note("PlainWorker", *args)
  end
end

class HandoverWorker
  include Sidekiq::Worker

  def perform(*args)
    note("HandoverWorker", *args)
    raise ArgumentError, "not for Ruby: é😀"
  end
end

# There is no such class in Python.
module Ruby
  class OnlyWorker
    include Sidekiq::Worker

    def perform(*args)
      note("Ruby::OnlyWorker", *args)
      raise ArgumentError, "the first run" if args.first == "fails once" && Sidekiq.redis { |redis| redis.incr("interop:runs") } == 1
    end
  end
end

# Pushes a job of Python, in the trace of its own.
class RelayWorker
  include Sidekiq::Worker

  def perform(worker)
    Sidekiq::Client.push("class" => worker, "queue" => "python", "args" => ["from Ruby"])
    note("RelayWorker", worker)
  end
end

class WaitingWorker
  include Sidekiq::Worker

  def perform(list_key)
    note("WaitingWorker", list_key)
  end
end

class HeldWorker
  include Sidekiq::Worker

  def perform(key)
    sleep 0.05 until Sidekiq.redis { |redis| redis.get(key) }
  end
end

# Rails' Active Job where it is installed (Debian's ruby-activejob), else classes that read and write the same format.
begin
  require "logger"
  require "bigdecimal"
  require "active_job"
  require "active_job/queue_adapters/sidekiq_adapter"
  ActiveJob::Base.queue_adapter = :sidekiq
  ActiveJob::Base.logger = nil
rescue LoadError
  module ActiveJob
    class Base
      def self.queue_as(_) = nil

      def self.perform_later(*args, **named)
        named = named.transform_keys(&:to_s)
        arguments = [*args, {**named, "_aj_ruby2_keywords" => named.keys}]
        job = {"job_class" => name, "job_id" => "j-1", "queue_name" => "default", "arguments" => arguments, "executions" => 0}
        wrapper = since?("8") ? "Sidekiq::ActiveJob::Wrapper" : "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"
        Sidekiq::Client.push("class" => wrapper, "wrapped" => name, "queue" => "default", "args" => [job])
      end
    end

    module QueueAdapters
      module SidekiqAdapter
        class JobWrapper
          include Sidekiq::Worker

          def perform(job)
            *args, last = job["arguments"]
            named = last.slice(*last["_aj_ruby2_keywords"]).transform_keys(&:to_sym)
            args.each { |arg| arg.delete("_aj_symbol_keys") if arg.is_a?(Hash) }
            Object.const_get(job["job_class"]).new.perform(*args, **named)
          end
        end
      end
    end
  end
end

if since?("8") && !Sidekiq.const_defined?("ActiveJob::Wrapper")
  module Sidekiq
    module ActiveJob
      Wrapper = ::ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper
    end
  end
end

class ReportJob < ::ActiveJob::Base
  queue_as :default

  def perform(*args, mode:)
    note("ReportJob", *args, mode)
  end
end

# What the tests may ask for.
module Console
  module_function

  def about(_)
    {sidekiq: Sidekiq::VERSION, ruby: RUBY_VERSION}
  end

  def perform_async(command)
    Object.const_get(command["class"]).perform_async(*command["args"])
  end

  # The trace of the pushes from here on.
  def trace(command)
    Traces.current = command["fields"]
    true
  end

  def perform_later(command)
    ReportJob.perform_later(*command["args"], mode: command["mode"])
    true
  end

  def perform_in(command)
    Object.const_get(command["class"]).perform_in(command["seconds"], *command["args"])
  end

  def push(command)
    Sidekiq::Client.push(command["item"])
  end

  # Pushes and promotions from here on go through GitLab's limiter; without numbers they do not.
  def limit_sizes(command)
    SizeLimiter.threshold = command["threshold"]
    SizeLimiter.limit = command["limit"]
    true
  end

  def decompressed(command)
    Sidekiq::Queue.new(command["name"]).map { |job| SizeLimiter.decompress(job.item) }
  end

  def queue(command)
    queue = Sidekiq::Queue.new(command["name"])
    {names: Sidekiq::Queue.all.map(&:name), size: queue.size, latency: queue.latency, jobs: queue.map { |job| shown(job) }}
  end

  def clear(command)
    Sidekiq::Queue.new(command["name"]).clear
    true
  end

  def delete_job(command)
    Sidekiq::Queue.new(command["name"]).find_job(command["jid"]).delete
    true
  end

  def entries(command)
    set(command).map { |entry| shown(entry).merge(score: entry.score) }
  end

  def retry_entry(command)
    set(command).find_job(command["jid"]).retry
  end

  # An action of the data API on one entry, as the Web UI calls it.
  def act(command)
    entry = set(command).find_job(command["jid"])
    command["at"] ? entry.reschedule(command["at"]) : entry.public_send(command["action"])
    true
  end

  # What the Ruby poller does when it wakes.
  def enqueue_due(_)
    (since?("6.5") ? Sidekiq::Scheduled::Enq.new(Sidekiq.default_configuration) : Sidekiq::Scheduled::Enq.new).enqueue_jobs
    true
  end

  def processes(_)
    Sidekiq::ProcessSet.new.map do |process|
      %w[identity hostname pid tag labels queues concurrency busy beat started_at rss quiet].to_h { |name| [name, process[name]] }
    end
  end

  def work(_)
    Sidekiq::Workers.new.map do |process, thread, work|
      fields = work.is_a?(Hash) ? work : {queue: work.queue, payload: work.payload, run_at: work.run_at.to_i}
      {process: process, thread: thread}.merge(fields)
    end
  end

  def cancel(command)
    Sidekiq::Client.new.cancel!(command["jid"])
    true
  end

  # What the Metrics page knows of a class, over an hour.
  def metrics(command)
    found = Sidekiq::Metrics::Query.new.for_job(command["class"], minutes: 60).job_results[command["class"]]
    {totals: found.totals, histogram: found.hist.values.flatten.map(&:to_i).sum}
  end

  def signal(command)
    process = Sidekiq::ProcessSet.new.find { |one| one.identity == command["identity"] }
    process.public_send(command["signal"])
    true
  end

  def stats(_)
    stats = Sidekiq::Stats.new
    day = Sidekiq::Stats::History.new(1)
    {processed: stats.processed, failed: stats.failed, enqueued: stats.enqueued, scheduled: stats.scheduled_size,
     retry: stats.retry_size, dead: stats.dead_size, processes: stats.processes_size, busy: stats.workers_size,
     processed_today: day.processed.values.first, failed_today: day.failed.values.first}
  end

  def pages(command)
    require "rack/mock"
    require "sidekiq/web"
    browser = Rack::MockRequest.new(Sidekiq::Web)
    command["paths"].to_h do |path|
      page = browser.get(path, "rack.session" => {})
      [path, {status: page.status, body: page.body}]
    end
  end

  def set(command)
    {"retry" => Sidekiq::RetrySet, "dead" => Sidekiq::DeadSet, "schedule" => Sidekiq::ScheduledSet}.fetch(command["set"]).new
  end

  def shown(job)
    item = job.item
    return {raw: job.value.unpack1("H*")} unless item.is_a?(Hash) && item["class"]
    times = {created_at: job.created_at, enqueued_at: job.enqueued_at}.transform_values { |time| time&.to_f }
    {jid: job.jid, klass: job.klass, args: job.args, item: item, backtrace: item["error_backtrace"] && job.error_backtrace,
     latency: job.latency}.merge(times)
  end
end

def answer(line)
  command = JSON.parse(line)
  {ok: Console.public_send(command.fetch("do"), command)}
rescue => error
  {error: "#{error.class}: #{error.message}", backtrace: error.backtrace.first(5)}
end

unless Sidekiq.server?
  $stdout.sync = true
  $stdin.each_line { |line| puts JSON.generate(answer(line)) }
end
