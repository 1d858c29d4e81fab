# frozen_string_literal: true

# Sidekiq's own web page, beside which the dashboard is tested: rackup --server webrick --port PORT sidekiq_web.ru

require "securerandom"
require "sidekiq"
require "sidekiq/web"

# Its forms need a session since 6.2 until 8, and Rack 3 has moved sessions to a gem of their own.
begin
  require "rack/session"
rescue LoadError
  require "rack"
end
use Rack::Session::Cookie, secret: SecureRandom.hex(64), same_site: true
run Sidekiq::Web
