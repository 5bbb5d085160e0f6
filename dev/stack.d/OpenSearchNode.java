import java.nio.file.Path;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.opensearch.Version;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.plugins.PluginInfo;

/**
 * An OpenSearch node from plain jars, for dev/stack: its own launcher wants a whole distribution, which is no Maven artifact.
 * Arguments: folder for its data, HTTP port, transport port. Ends on TERM.
 */
public class OpenSearchNode extends Node {
    private OpenSearchNode(Environment environment) {
        super(environment, modules(), false);
    }

    public static void main(String[] arguments) throws Exception {
        Settings settings = Settings.builder()
            .put("path.home", arguments[0])
            .put("cluster.name", "geofold-stack")
            .put("discovery.type", "single-node")
            .put("network.host", "127.0.0.1")
            .put("http.port", arguments[1])
            .put("transport.port", arguments[2])
            .put("http.type", "netty4")
            .put("transport.type", "netty4")
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .put("action.auto_create_index", false)
            .build();
        Environment environment =
            InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), Path.of(arguments[0], "config"), () -> "one");
        Node node = new OpenSearchNode(environment);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                node.close();
            } catch (Exception problem) {
                problem.printStackTrace();
            }
        }));
        node.start();
        Thread.currentThread().join();
    }

    /** The module that is on the class path already: as a class for OpenSearch 2, described for later ones. */
    @SuppressWarnings("unchecked")
    private static <T> Collection<T> modules() {
        try {
            Object module = Version.CURRENT.major < 3
                ? Class.forName("org.opensearch.transport.Netty4Plugin")
                : new PluginInfo("transport-netty4", "transport-netty4", Version.CURRENT.toString(), Version.CURRENT, "21",
                    "org.opensearch.transport.Netty4ModulePlugin", null, List.of(), false);
            return (Collection<T>) List.of(module);
        } catch (ClassNotFoundException problem) {
            throw new IllegalStateException(problem);
        }
    }
}
