# The story with Redis.pm and DBI (DBD::Pg).

use strict;
use warnings;

package Worker;

use DBI;
use Redis;

use constant { LOCK => 'lock:counter', SHORT_MS => 300, LONG_MS => 60_000, WAIT_MS => 10_000 };

my $acquisitions = 0;

sub new {
    my ($class, $name) = @_;
    my ($redis) = $ENV{REDIS_URL} =~ m{^redis://([^/]+)};
    my ($user, $host, $port, $database) = $ENV{DATABASE_URL} =~ m{^postgresql://(\w+)@([^:/]+):(\d+)/(\w+)$};
    my %raise = (RaiseError => 1, PrintError => 0);
    return bless {
        name  => $name,
        redis => Redis->new(server => $redis),
        db    => DBI->connect("dbi:Pg:host=$host;port=$port;dbname=$database", $user, '', \%raise),
    }, $class;
}

# Any command is a method; the name of this one is not a word of Perl's.
sub call {
    my ($self, $command, @arguments) = @_;
    my $method = "FENCELOCK.$command";
    return $self->{redis}->$method(@arguments);
}

# The fence; undef: busy.
sub acquire {
    my ($self, $ttl_ms, @options) = @_;
    $self->{owner} = join '-', $self->{name}, $$, time, ++$acquisitions;
    return $self->call('ACQUIRE', LOCK, $self->{owner}, $ttl_ms, @options, 'RETRY');
}

sub release {
    my ($self, $fence) = @_;
    return $self->call('RELEASE', LOCK, $self->{owner}, 'FENCE', $fence);
}

# Why the hold ended; undef: it has not, so far.
sub await_end {
    my ($self, $fence, $ms) = @_;
    return $self->call('AWAIT', LOCK, $fence, $ms);
}

# The row; undef: stale.
sub claim {
    my ($self, $fence) = @_;
    return $self->{db}->selectrow_hashref('SELECT * FROM fenced_claim(NULL::counters, ?, ?)', undef, 1, $fence);
}

# 1: written; 0: stale.
sub update {
    my ($self, $fence, $value) = @_;
    my $update = q{SELECT fenced_update('counters', ?, ?, ?)};
    return ($self->{db}->selectrow_array($update, undef, 1, $fence, qq({"value": $value})))[0];
}

package main;

sub expect {
    my ($seen, $expected) = map { defined $_ ? $_ : 'undef' } @_;
    die "expected $expected, saw $seen\n" if $seen ne $expected;
    return;
}

my ($A, $B) = (Worker->new('A'), Worker->new('B'));
my $a_fence = $A->acquire(Worker::SHORT_MS);
my $a_row   = $A->claim($a_fence);

# A stalls. B waits in the server's queue until A's lease has expired.
my $b_fence = $B->acquire(Worker::LONG_MS, 'WAIT', Worker::WAIT_MS);
my $b_row   = $B->claim($b_fence);

# A wakes up and goes on: refused at the row, and its release finds nothing.
expect($A->update($a_fence, $a_row->{value} + 1), 0);
expect($A->claim($a_fence),                       undef);
expect($A->release($a_fence),                     0);

expect($B->update($b_fence, $b_row->{value} + 1), 1);
expect($B->release($b_fence),                     1);

# A does it again, with a new lease.
my $again = $A->acquire(Worker::LONG_MS);
expect($B->acquire(Worker::LONG_MS), undef);
die "a write before the claim\n" if eval { $A->update($again, 9); 1 };
expect($A->{db}->state, 'LF002');
expect($A->update($again, $A->claim($again)->{value} + 1), 1);
expect($B->await_end($again, 50), undef);
expect($A->release($again),       1);
expect($B->await_end($again, Worker::WAIT_MS), 'ended');

my ($value) = $A->{db}->selectrow_array('SELECT value FROM counters WHERE id = 1');
print "$a_fence $b_fence $again $value\n";
