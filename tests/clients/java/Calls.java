import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;

/**
 * Calls with parameters, as JDBC sends them: a line for each, its fields separated by tabs. The statement comes first, then its
 * parameters: i:1 is a long, s:x a text, j:{} a document. Prints the first column of the rows of each, or the SQLSTATE.
 */
public class Calls {
    public static void main(String[] arguments) throws Exception {
        URI url = URI.create(System.getenv("DATABASE_URL"));
        String jdbc = "jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath();
        try (Connection db = DriverManager.getConnection(jdbc + "?user=" + url.getUserInfo());
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                System.out.println(answer(db, line.split("\t")));
            }
        }
    }

    static String answer(Connection db, String[] fields) {
        try (var call = db.prepareStatement(fields[0].replaceAll("\\$\\d", "?"))) {
            for (int n = 1; n < fields.length; n++) {
                String value = fields[n].substring(2);
                if (fields[n].startsWith("i:")) {
                    call.setLong(n, Long.parseLong(value));
                } else {
                    call.setString(n, value);
                }
            }
            List<String> firsts = new ArrayList<>();
            for (var rows = call.executeQuery(); rows.next(); ) {
                firsts.add(rows.getString(1));
            }
            return String.join(",", firsts);
        } catch (SQLException error) {
            return error.getSQLState();
        }
    }
}
