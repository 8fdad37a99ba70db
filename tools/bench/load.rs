//! A load generator for Redis: one command line, one line of JSON.
//!
//! redis-benchmark sends one command over and over; a lock needs pairs on the same key, clients that wait for each
//! other, and the time from one client's release to another's reply. Standard library alone, so that `rustc -O` builds it.
//!
//! Words of a command are split at spaces. `{k}` is a key of the connection's own, `{n}` counts up, `{c}` is the client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};

const USAGE: &str = "load stream PORT CONNECTIONS DEPTH COMMANDS COMMAND...
load contend PORT CLIENTS SECONDS TURNS POLL_MS SPREAD_MS ACQUIRE RELEASE
load rotate PORT WAITERS ROUNDS ACQUIRE RELEASE";

/// Keys per connection: enough that a pipeline of 16 holds no key twice.
const KEYS: usize = 8;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let line = match words.as_slice() {
        ["stream", port, connections, depth, commands, templates @ ..] => {
            stream(port, number(connections), number(depth), number(commands), templates)
        }
        ["contend", port, clients, seconds, turns, poll_ms, spread_ms, acquire, release] => {
            let [seconds, poll_ms, spread_ms] = [seconds, poll_ms, spread_ms].map(|word| number(word) as u64);
            let contest = Contest { seconds, turns: number(turns), poll_ms, spread_ms };
            contend(port, number(clients), contest, acquire, release)
        }
        ["rotate", port, waiters, rounds, acquire, release] => {
            rotate(port, number(waiters), number(rounds), acquire, release)
        }
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    };
    println!("{line}");
}

/// Sends the commands over and over, `depth` at a time on each connection, and counts the replies by what they say.
fn stream(port: &str, connections: usize, depth: usize, commands: usize, templates: &[&str]) -> String {
    let mut lines: Vec<Line> = (0..connections).map(|_| Line::connect(port)).collect();
    let counts_up = templates.iter().any(|template| template.contains("{n}"));
    let mut next = 0;
    let mut chunks = |client: usize| -> Vec<Vec<u8>> {
        let sequence: Vec<Vec<u8>> = (0..KEYS.max(depth))
            .flat_map(|key| templates.iter().map(move |template| (key, template)))
            .map(|(key, template)| {
                next += usize::from(counts_up);
                encoded(template, &format!("k:{client}:{}", key % KEYS), next, client)
            })
            .collect();
        sequence.chunks(depth).filter(|chunk| chunk.len() == depth).map(|chunk| chunk.concat()).collect()
    };
    let mut ready: Vec<Vec<Vec<u8>>> = (0..connections).map(&mut chunks).collect();
    let (mut sent, mut round, mut seen) = (0, 0, Replies::default());
    let began = Instant::now();
    while sent < commands {
        for (client, line) in lines.iter_mut().enumerate() {
            let place = round % ready[client].len();
            if counts_up && place == 0 && round > 0 {
                ready[client] = chunks(client);
            }
            line.send(&ready[client][place]);
        }
        for line in &mut lines {
            (0..depth).for_each(|_| seen.count(line.reply()));
        }
        (sent, round) = (sent + depth * connections, round + 1);
    }
    format!(
        "{{\"commands\": {sent}, \"seconds\": {}, \"nulls\": {}, \"zeros\": {}, \"others\": {}}}",
        began.elapsed().as_secs_f64(),
        seen.nulls,
        seen.zeros,
        seen.others
    )
}

/// How clients contend.
#[derive(Clone, Copy)]
struct Contest {
    /// How long, and for how many turns each.
    seconds: u64,
    turns: usize,
    /// How long one that polls sleeps between its attempts.
    poll_ms: u64,
    /// Over how long their first attempts are spread.
    spread_ms: u64,
}

/// What is seen of a contest, in microseconds since it began.
#[derive(Default)]
struct Seen {
    asks: AtomicU64,
    freed_us: AtomicU64,
    cycles: AtomicU64,
    last_us: AtomicU64,
    longest_us: AtomicU64,
}

/// Each client takes the lock and gives it back, over and over. Somebody else has it until all have asked for it, so waits
/// count from then on.
fn contend(port: &str, clients: usize, contest: Contest, acquire: &str, release: &str) -> String {
    let texts = |client| (encoded(acquire, "lock", 0, client), encoded(release, "lock", 0, client));
    let seen = Arc::new(Seen::default());
    let (mut holder, (take, give_back)) = (Line::connect(port), texts(clients));
    assert!(holder.call(&take).is_yes(), "the lock is not free");
    let lines: Vec<Line> = (0..clients).map(|_| Line::connect(port)).collect();
    let began = Instant::now();
    let now_us = move || began.elapsed().as_micros() as u64;
    let each = lines.into_iter().enumerate();
    let threads: Vec<_> = each
        .map(|(client, mut line)| {
            let ((acquire, release), seen) = (texts(client), seen.clone());
            let first = Duration::from_micros(contest.spread_ms * 1_000 * client as u64 / clients as u64);
            std::thread::spawn(move || {
                std::thread::sleep(first.saturating_sub(began.elapsed()));
                for _ in 0..contest.turns {
                    let asked_us = now_us();
                    line.send(&acquire);
                    seen.asks.fetch_add(1, Relaxed);
                    loop {
                        let is_mine = line.reply().is_yes();
                        let freed_us = seen.freed_us.load(Relaxed);
                        let is_over = freed_us > 0 && now_us() >= freed_us + contest.seconds * 1_000_000;
                        if is_mine || is_over {
                            seen.longest_us.fetch_max(now_us() - asked_us.max(freed_us), Relaxed);
                        }
                        if is_mine {
                            line.call(&release);
                            seen.cycles.fetch_add(1, Relaxed);
                            seen.last_us.fetch_max(now_us(), Relaxed);
                        }
                        if is_over {
                            return;
                        }
                        if is_mine {
                            break;
                        }
                        std::thread::sleep(Duration::from_millis(contest.poll_ms));
                        line.send(&acquire);
                    }
                }
            })
        })
        .collect();
    while seen.asks.load(Relaxed) < clients as u64 {
        std::thread::yield_now();
    }
    let freed_us = now_us();
    seen.freed_us.store(freed_us, Relaxed);
    holder.call(&give_back);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let [cycles, last_us, longest_us] =
        [&seen.cycles, &seen.last_us, &seen.longest_us].map(|count| count.load(Relaxed));
    let seconds = (last_us - freed_us) as f64 / 1e6;
    format!("{{\"cycles_per_s\": {}, \"longest_wait_ms\": {}}}", cycles as f64 / seconds, longest_us as f64 / 1e3)
}

/// One holder and a queue of waiters; the holder releases, the first waiter's reply is timed, and the holder queues again.
fn rotate(port: &str, waiters: usize, rounds: usize, acquire: &str, release: &str) -> String {
    let mut lines: Vec<Line> = (0..=waiters).map(|_| Line::connect(port)).collect();
    let texts =
        |template: &str| -> Vec<Vec<u8>> { (0..=waiters).map(|client| encoded(template, "lock", 0, client)).collect() };
    let (acquires, releases) = (texts(acquire), texts(release));
    let ping = encoded("PING", "", 0, 0);
    for (line, text) in lines.iter_mut().zip(&acquires) {
        line.send(text);
    }
    // Once the server has answered a later command, the earlier ones are queued.
    let mut first = Line::connect(port);
    first.call(&ping);
    // A lock is granted to the first; a list has to be given its first element.
    if !acquire.contains("FENCELOCK") {
        first.call(&releases[0]);
    }
    lines[0].reply();
    let mut waits_ns: Vec<u64> = Vec::with_capacity(rounds);
    let began = Instant::now();
    for round in 0..rounds {
        let (holder, next) = (round % (waiters + 1), (round + 1) % (waiters + 1));
        let released = Instant::now();
        lines[holder].send(&releases[holder]);
        lines[next].reply();
        waits_ns.push(released.elapsed().as_nanos() as u64);
        lines[holder].reply();
        lines[holder].send(&acquires[holder]);
        first.call(&ping);
    }
    let seconds = began.elapsed().as_secs_f64();
    waits_ns.sort_unstable();
    let at = |share: f64| waits_ns[((rounds - 1) as f64 * share) as usize] as f64 / 1e3;
    format!("{{\"rounds\": {rounds}, \"seconds\": {seconds}, \"median_us\": {}, \"p99_us\": {}}}", at(0.5), at(0.99))
}

fn number(word: &str) -> usize {
    word.parse().unwrap_or_else(|_| panic!("{word} is not a number\n{USAGE}"))
}

/// A command as the server reads it.
fn encoded(template: &str, key: &str, count: usize, client: usize) -> Vec<u8> {
    let filled = |word: &str| {
        word.replace("{k}", key).replace("{n}", &count.to_string()).replace("{c}", &format!("{client:036}"))
    };
    let words: Vec<String> = template.split(' ').map(filled).collect();
    let mut text = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        text.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    text
}

/// What a reply says, as far as a lock's client reads it.
#[derive(Clone, Copy, PartialEq)]
enum Reply {
    Null,
    Zero,
    Other,
}

impl Reply {
    fn is_yes(self) -> bool {
        self == Reply::Other
    }
}

#[derive(Default)]
struct Replies {
    nulls: usize,
    zeros: usize,
    others: usize,
}

impl Replies {
    fn count(&mut self, reply: Reply) {
        *match reply {
            Reply::Null => &mut self.nulls,
            Reply::Zero => &mut self.zeros,
            Reply::Other => &mut self.others,
        } += 1;
    }
}

/// A connection, with what was received and not yet read.
struct Line {
    stream: TcpStream,
    read: Vec<u8>,
    at: usize,
}

impl Line {
    fn connect(port: &str) -> Line {
        let stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("no server on the port");
        stream.set_nodelay(true).unwrap();
        Line { stream, read: Vec::new(), at: 0 }
    }

    fn send(&mut self, text: &[u8]) {
        self.stream.write_all(text).expect("the server closed the connection");
    }

    fn call(&mut self, text: &[u8]) -> Reply {
        self.send(text);
        self.reply()
    }

    /// The next reply. An error ends the program: a measure of refusals is none.
    fn reply(&mut self) -> Reply {
        let line = self.line();
        let (kind, rest) = (line[0], String::from_utf8_lossy(&line[1..]).into_owned());
        match (kind, rest.as_str()) {
            (b'-', error) => panic!("the server refused: {error}"),
            (b'$' | b'*', "-1") | (b'_', _) => Reply::Null,
            (b':', "0") => Reply::Zero,
            (b':' | b'+', _) => Reply::Other,
            (b'$', length) => {
                self.skip(length.parse::<usize>().unwrap() + 2);
                Reply::Other
            }
            (b'*', length) => {
                for _ in 0..length.parse::<usize>().unwrap() {
                    self.reply();
                }
                Reply::Other
            }
            (kind, _) => panic!("unknown reply {}", kind as char),
        }
    }

    fn line(&mut self) -> Vec<u8> {
        loop {
            if let Some(end) = self.read[self.at..].windows(2).position(|pair| pair == b"\r\n") {
                let line = self.read[self.at..self.at + end].to_vec();
                self.at += end + 2;
                return line;
            }
            self.fill();
        }
    }

    fn skip(&mut self, count: usize) {
        while self.read.len() - self.at < count {
            self.fill();
        }
        self.at += count;
    }

    fn fill(&mut self) {
        self.read.drain(..self.at);
        self.at = 0;
        let mut bytes = [0; 65_536];
        let count = self.stream.read(&mut bytes).unwrap();
        assert!(count > 0, "the server closed the connection");
        self.read.extend_from_slice(&bytes[..count]);
    }
}
