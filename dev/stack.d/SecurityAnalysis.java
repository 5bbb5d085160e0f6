package geofold.stack;

import java.util.Map;
import org.apache.lucene.analysis.LowerCaseFilter;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.Tokenizer;
import org.apache.lucene.analysis.email.UAX29URLEmailTokenizer;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.index.IndexSettings;
import org.elasticsearch.index.analysis.AbstractTokenFilterFactory;
import org.elasticsearch.index.analysis.AbstractTokenizerFactory;
import org.elasticsearch.index.analysis.TokenFilterFactory;
import org.elasticsearch.index.analysis.TokenizerFactory;
import org.elasticsearch.indices.analysis.AnalysisModule.AnalysisProvider;
import org.elasticsearch.plugins.AnalysisPlugin;
import org.elasticsearch.plugins.Plugin;

/**
 * The index in which Elasticsearch keeps its API keys has an analyzer for e-mail addresses, made of parts that the
 * distribution with few modules lacks. These stand in for them: nobody searches for an address here.
 */
public final class SecurityAnalysis extends Plugin implements AnalysisPlugin {
    @Override
    public Map<String, AnalysisProvider<TokenizerFactory>> getTokenizers() {
        return Map.of("uax_url_email", Emails::new);
    }

    @Override
    public Map<String, AnalysisProvider<TokenFilterFactory>> getTokenFilters() {
        return Map.of("pattern_capture", AsItIs::new, "unique", AsItIs::new, "lowercase", LowerCase::new);
    }

    private static final class Emails extends AbstractTokenizerFactory {
        Emails(IndexSettings index, Environment environment, String name, Settings settings) {
            super(index, settings, name);
        }

        @Override
        public Tokenizer create() {
            return new UAX29URLEmailTokenizer();
        }
    }

    private static final class AsItIs extends AbstractTokenFilterFactory {
        AsItIs(IndexSettings index, Environment environment, String name, Settings settings) {
            super(name, settings);
        }

        @Override
        public TokenStream create(TokenStream tokens) {
            return tokens;
        }
    }

    private static final class LowerCase extends AbstractTokenFilterFactory {
        LowerCase(IndexSettings index, Environment environment, String name, Settings settings) {
            super(name, settings);
        }

        @Override
        public TokenStream create(TokenStream tokens) {
            return new LowerCaseFilter(tokens);
        }
    }
}
