# frozen_string_literal: true

# client.py for Sidekiq: `ruby sidekiq_client.rb ACTION JSON` prints its measurements.

require_relative "sidekiq_jobs"

SLICE = 1000
WARM = 200
PROBES = 5
PAYLOAD_BYTES = 98_000

def worker_of(kind)
  Object.const_get("#{kind.capitalize}Worker")
end

def arguments(kind)
  return [[Random.new(7).bytes(PAYLOAD_BYTES * 3 / 4)].pack("m0")] if kind == "payload"

  kind == "latency" ? [Meter.clock] : []
end

def push_bulk(kind, queue, args, count)
  Sidekiq::Client.push_bulk("class" => worker_of(kind), "queue" => queue, "args" => [args] * count)
end

def rate(count)
  began = Meter.clock
  used = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
  yield
  cpu = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - used
  { "rate" => count / (Meter.clock - began), "cpu_us" => cpu / count * 1e6 }
end

def fill(kind:, queues:, count:)
  args = arguments(kind)
  share, rest = count.divmod(queues.size)
  queues.each_with_index do |queue, number|
    left = share + (number < rest ? 1 : 0)
    while left.positive?
      push_bulk(kind, queue, args, [left, SLICE].min)
      left -= SLICE
    end
  end
  { "count" => count }
end

def push(kind:, count:)
  worker = worker_of(kind)
  args = arguments(kind)
  WARM.times { worker.perform_async(*args) }
  rate(count) { count.times { worker.perform_async(*args) } }
end

def bulk(kind:, count:)
  args = arguments(kind)
  push_bulk(kind, "default", args, SLICE)
  rate(count / SLICE * SLICE) { (count / SLICE).times { push_bulk(kind, "default", args, SLICE) } }
end

def latency(queues:, count:, period_s:)
  PROBES.times { NoopWorker.perform_async }
  pushers = queues.map { |queue| queue == "default" ? LatencyWorker : LatencyWorker.set("queue" => queue) }
  due = Meter.clock
  count.times do |number|
    due += period_s
    sleep([0.0, due - Meter.clock].max)
    pushers[number % pushers.size].perform_async(Meter.clock)
  end
  { "count" => count }
end

def guideline(plan:)
  given = JSON.parse(File.read(plan))
  pushers = Hash.new { |known, queue| known[queue] = GuidelineWorker.set("queue" => queue) }
  given["jobs"].each do |number, namespace, _policies, large|
    pushers[namespace].perform_async(number, *(large ? [given["records"]] : []))
  end
  { "count" => given["jobs"].size }
end

puts JSON.generate(send(ARGV[0], **JSON.parse(ARGV[1], symbolize_names: true)))
