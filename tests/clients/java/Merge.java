import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.sql.SQLException;
import javax.persistence.Entity;
import javax.persistence.Id;
import javax.persistence.Table;
import org.hibernate.HibernateException;
import org.hibernate.Session;
import org.hibernate.SessionFactory;
import org.hibernate.annotations.Proxy;
import org.hibernate.cfg.Configuration;

/**
 * Hibernate merges an entity that was loaded before its row was deleted, and inserts it again. The entity knows nothing of fences.
 *
 * <p>Takes the server from DATABASE_URL, the fence of the holder as the argument, and a line on standard input when the row may be
 * gone. Prints "loaded", then "saved" or the SQLSTATE.
 */
public class Merge {
    /** A row of orders. */
    @Entity
    @Table(name = "orders")
    @Proxy(lazy = false)
    public static class Order {
        @Id int id;
        String status;
    }

    public static void main(String[] arguments) throws Exception {
        // The program is compiled as it starts, and lies in no file.
        Thread.currentThread().setContextClassLoader(Merge.class.getClassLoader());
        URI server = new URI(System.getenv("DATABASE_URL"));
        Configuration configuration = new Configuration().addAnnotatedClass(Order.class);
        String url = "jdbc:postgresql://" + server.getHost() + ":" + server.getPort() + server.getPath();
        configuration.setProperty("hibernate.connection.url", url);
        configuration.setProperty("hibernate.connection.username", server.getUserInfo());
        configuration.setProperty("hibernate.dialect", "org.hibernate.dialect.PostgreSQLDialect");
        SessionFactory sessions = configuration.buildSessionFactory();
        Session session = sessions.openSession();
        Order order = (Order) session.get(Order.class, 7);
        session.close();
        System.out.println("loaded");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        order.status = "late";
        System.out.println(merge(sessions.openSession(), order, Long.parseLong(arguments[0])));
        sessions.close();
    }

    static String merge(Session session, Order order, long fence) {
        try {
            session.beginTransaction();
            session.createSQLQuery("SELECT fence_use(:fence)").setLong("fence", fence).list();
            session.merge(order);
            session.getTransaction().commit();
            return "saved";
        } catch (HibernateException error) {
            session.getTransaction().rollback();
            return sqlState(error);
        } finally {
            session.close();
        }
    }

    static String sqlState(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof SQLException said) {
                return said.getSQLState();
            }
        }
        return String.valueOf(error);
    }
}
