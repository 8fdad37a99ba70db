import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.OptionalInt;
import java.util.UUID;

/** The story with JDBC. Debian has no Redis client for Java: this one speaks RESP on a socket, which is all it takes. */
public class Story {
    static final String LOCK = "lock:counter";
    static final int SHORT_MS = 300;
    static final int LONG_MS = 60_000;
    static final int WAIT_MS = 10_000;

    public static void main(String[] arguments) throws Exception {
        try (Worker a = new Worker(); Worker b = new Worker()) {
            long aFence = a.acquire(SHORT_MS);
            int aRead = a.claim(aFence).getAsInt();

            // A stalls. B waits in the server's queue until A's lease has expired.
            long bFence = b.acquire(LONG_MS, "WAIT", WAIT_MS);
            int bRead = b.claim(bFence).getAsInt();

            // A wakes up and goes on: refused at the row, and its release finds nothing.
            expect(a.update(aFence, aRead + 1), false);
            expect(a.claim(aFence), OptionalInt.empty());
            expect(a.release(aFence), 0L);

            expect(b.update(bFence, bRead + 1), true);
            expect(b.verdicts(bFence, bRead + 1), List.of("written", "missing"));
            expect(a.verdicts(aFence, 9), List.of("stale", "missing"));
            expect(b.release(bFence), 1L);

            // A does it again, with a new lease.
            long again = a.acquire(LONG_MS);
            expect(b.acquire(LONG_MS), null);
            try {
                a.update(again, 9);
                throw new AssertionError("a write before the claim");
            } catch (SQLException error) {
                expect(error.getSQLState(), "LF002");
            }
            expect(a.update(again, a.claim(again).getAsInt() + 1), true);
            expect(b.awaitEnd(again, 50), null);
            expect(a.release(again), 1L);
            expect(b.awaitEnd(again, WAIT_MS), "ended");

            try (var row = a.db.createStatement().executeQuery("SELECT value FROM counters WHERE id = 1")) {
                row.next();
                System.out.println(aFence + " " + bFence + " " + again + " " + row.getInt(1));
            }
        }
    }

    static void expect(Object seen, Object expected) {
        if (!Objects.equals(seen, expected)) {
            throw new AssertionError("expected " + expected + ", saw " + seen);
        }
    }

    /** One worker: its own connections, and a new owner for each acquisition. */
    static class Worker implements AutoCloseable {
        final Resp redis = new Resp(URI.create(System.getenv("REDIS_URL")));
        final Connection db;
        String owner;

        Worker() throws Exception {
            URI url = URI.create(System.getenv("DATABASE_URL"));
            String jdbc = "jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath();
            db = DriverManager.getConnection(jdbc + "?user=" + url.getUserInfo());
        }

        /** The fence; null: busy. */
        Long acquire(int ttlMs, Object... options) throws IOException {
            owner = UUID.randomUUID().toString();
            Object[] call = {"FENCELOCK.ACQUIRE", LOCK, owner, ttlMs, "RETRY"};
            Object[] whole = Arrays.copyOf(call, call.length + options.length);
            System.arraycopy(options, 0, whole, call.length, options.length);
            return (Long) redis.call(whole);
        }

        Long release(long fence) throws IOException {
            return (Long) redis.call("FENCELOCK.RELEASE", LOCK, owner, "FENCE", fence);
        }

        /** Why the hold ended; null: it has not, so far. */
        String awaitEnd(long fence, int ms) throws IOException {
            return (String) redis.call("FENCELOCK.AWAIT", LOCK, fence, ms);
        }

        /** The counter; empty: stale. */
        OptionalInt claim(long fence) throws SQLException {
            try (var claim = db.prepareStatement("SELECT value FROM fenced_claim(NULL::counters, ?, ?)")) {
                claim.setInt(1, 1);
                claim.setLong(2, fence);
                var row = claim.executeQuery();
                return row.next() ? OptionalInt.of(row.getInt(1)) : OptionalInt.empty();
            }
        }

        /** Whether it was written; false: stale. */
        boolean update(long fence, int value) throws SQLException {
            try (var update = db.prepareStatement("SELECT fenced_update('counters', ?, ?, ?::jsonb)")) {
                update.setInt(1, 1);
                update.setLong(2, fence);
                update.setString(3, "{\"value\": " + value + "}");
                var row = update.executeQuery();
                row.next();
                return row.getBoolean(1);
            }
        }

        /** The verdicts on counter 1, under its fence, and on one that is not there. */
        List<String> verdicts(long fence, int value) throws SQLException {
            try (var update = db.prepareStatement("SELECT verdict FROM fenced_update_many('counters', ?, ?, ?::jsonb)")) {
                update.setArray(1, db.createArrayOf("integer", new Integer[] {1, 2}));
                update.setArray(2, db.createArrayOf("bigint", new Long[] {fence}));
                update.setString(3, "{\"value\": " + value + "}");
                var rows = update.executeQuery();
                var verdicts = new ArrayList<String>();
                while (rows.next()) {
                    verdicts.add(rows.getString(1));
                }
                return verdicts;
            }
        }

        @Override
        public void close() throws Exception {
            redis.socket.close();
            db.close();
        }
    }

    /** As much of the Redis protocol as integers, words and nulls need. */
    static class Resp {
        final Socket socket;
        final DataInputStream in;

        Resp(URI url) throws IOException {
            socket = new Socket(url.getHost(), url.getPort());
            socket.setSoTimeout(WAIT_MS + 5_000);
            in = new DataInputStream(socket.getInputStream());
        }

        Object call(Object... words) throws IOException {
            StringBuilder sent = new StringBuilder("*" + words.length + "\r\n");
            for (Object word : words) {
                sent.append("$" + word.toString().length() + "\r\n" + word + "\r\n");
            }
            socket.getOutputStream().write(sent.toString().getBytes(StandardCharsets.US_ASCII));
            String said = line();
            return switch (said.charAt(0)) {
                case ':' -> Long.valueOf(said.substring(1));
                case '$' -> said.equals("$-1") ? null : line();
                default -> throw new IOException(said);
            };
        }

        private String line() throws IOException {
            @SuppressWarnings("deprecation") // a line of ASCII is what it reads
            String line = in.readLine();
            if (line == null) {
                throw new EOFException("the server closed the connection");
            }
            return line;
        }
    }
}
