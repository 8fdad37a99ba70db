# Dumps the schema of one database as Rails does and loads it into another: FORMAT (ruby or sql) SOURCE TARGET FILE
# [INITIALIZER]. Prints Rails' version and the error of the load, if any; the dump is left in FILE.

require "logger"
require "json"
require "active_record"

format, source, target, file, initializer = ARGV
load initializer if initializer

config = lambda { |url| ActiveRecord::DatabaseConfigurations::UrlConfig.new("test", "primary", url, {}) }
tasks = ActiveRecord::Tasks::DatabaseTasks

ActiveRecord::Base.establish_connection(source)
if format == "sql"
  tasks.structure_dump(config.call(source), file)
else
  has_pools = ActiveRecord.version >= Gem::Version.new("7.2")
  from = has_pools ? ActiveRecord::Base.connection_pool : ActiveRecord::Base.connection
  File.open(file, "w") { |stream| ActiveRecord::SchemaDumper.dump(from, stream) }
end

ActiveRecord::Base.establish_connection(target)
ActiveRecord::Schema.verbose = false
begin
  format == "sql" ? tasks.structure_load(config.call(target), file) : load(file)
rescue StandardError => error
  failed = error.message
end
puts JSON.generate(version: ActiveRecord::VERSION::STRING, failed: failed)
