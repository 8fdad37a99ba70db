# Prepares a claim as Rails prepares its queries, has the table altered by somebody else, and claims again, outside of a
# transaction and in one: URL. Prints Rails' version and what came of it.

require "json"
require "active_record"

ActiveRecord::Base.establish_connection(ARGV[0])
connection = ActiveRecord::Base.connection
other = PG.connect(ARGV[0])

integer = ActiveRecord::Type::Integer.new(limit: 8)
bind = lambda { |name, value| ActiveRecord::Relation::QueryAttribute.new(name, value, integer) }
claim = lambda do
  connection.exec_query("SELECT * FROM fenced_claim(NULL::accounts, $1, $2)", "SQL", [bind.call("key", 1), bind.call("fence", 5)], prepare: true).to_a
end

claimed = [claim.call]
other.exec("ALTER TABLE accounts ADD more int DEFAULT 7")
claimed << claim.call
other.exec("ALTER TABLE accounts DROP more")
begin
  ActiveRecord::Base.transaction { claim.call }
rescue ActiveRecord::PreparedStatementCacheExpired => error
  expired = error.class.name
end
claimed << claim.call
puts JSON.generate(version: ActiveRecord::VERSION::STRING, claimed: claimed, expired: expired)
