//! Metrics whose label values are Rust enums, so that a series with a misspelt or unbounded label cannot be made.
//!
//! A [`Counters`] holds the child handle of every value of its label, made once: counting is an index into an array
//! and an atomic add, and a series that never counted is there from the start with the value 0, as `rate()` needs it.
//! `Register` makes metrics, registers them, and remembers name, type and help of each for docs and dashboards.

use prometheus::core::Collector;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, Result,
};

/// The closed set of values of one metric label.
pub trait Label: Copy + 'static {
    /// Every value, in the order of [`Label::index`].
    const ALL: &'static [Self];
    /// The label's value.
    fn as_str(self) -> &'static str;
    /// Its place in [`Label::ALL`].
    fn index(self) -> usize;
}

/// Declares an enum that is a [`Label`].
macro_rules! label {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident => $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $crate::support::telemetry::families::Label for $name {
            const ALL: &'static [Self] = &[$(Self::$variant,)+];

            fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}
pub(crate) use label;

/// Counters that differ in one label.
#[derive(Debug, Clone)]
pub struct Counters<L>(Children<L, IntCounter>);

impl<L: Label> Counters<L> {
    pub(crate) fn new(child: impl FnMut(L) -> IntCounter) -> Self {
        Self(Children::new(child))
    }

    /// The counter of one label value.
    pub fn of(&self, label: L) -> &IntCounter {
        self.0.of(label)
    }

    /// The sum over all label values.
    pub fn sum(&self) -> u64 {
        self.0.all.iter().map(IntCounter::get).sum()
    }
}

/// Gauges that differ in one label.
#[derive(Debug, Clone)]
pub struct Gauges<L>(Children<L, IntGauge>);

impl<L: Label> Gauges<L> {
    /// The gauge of one label value.
    pub fn of(&self, label: L) -> &IntGauge {
        self.0.of(label)
    }
}

/// Histograms that differ in one label.
#[derive(Debug, Clone)]
pub struct Histograms<L>(Children<L, Histogram>);

impl<L: Label> Histograms<L> {
    /// The histogram of one label value.
    pub fn of(&self, label: L) -> &Histogram {
        self.0.of(label)
    }
}

#[derive(Debug, Clone)]
struct Children<L, M> {
    all: Box<[M]>,
    label: std::marker::PhantomData<L>,
}

impl<L: Label, M> Children<L, M> {
    fn new(child: impl FnMut(L) -> M) -> Self {
        Self { all: L::ALL.iter().copied().map(child).collect(), label: std::marker::PhantomData }
    }

    fn of(&self, label: L) -> &M {
        &self.all[label.index()]
    }
}

/// Type of a metric in Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricType {
    /// Only rises; its name ends in `_total`.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Observations in buckets.
    Histogram,
}

impl MetricType {
    /// As in a `# TYPE` line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric, as docs and dashboards need to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricInfo {
    /// The whole name.
    pub name: String,
    /// Type in Prometheus.
    pub kind: MetricType,
    /// Its help text.
    pub help: String,
    /// Names of its labels.
    pub labels: Vec<String>,
}

/// Makes metrics in one registry and keeps the list of them.
#[derive(Debug, Default)]
pub(crate) struct Register {
    pub registry: Registry,
    pub catalogue: Vec<MetricInfo>,
}

impl Register {
    /// Registers metrics of every geofold process: its version, and Linux's process metrics.
    pub(crate) fn about_the_process(&mut self) -> Result<()> {
        self.gauge_vec("geofold_build_info", "Always 1, labelled with the running version.", &["version"])?
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        // Linux only; the names (`process_…`) are the ones that every Prometheus client uses.
        #[cfg(target_os = "linux")]
        self.registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        Ok(())
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str) -> Result<IntCounter> {
        self.add(MetricType::Counter, IntCounter::new(name, help)?)
    }

    pub(crate) fn float_counter(&mut self, name: &str, help: &str) -> Result<prometheus::Counter> {
        self.add(MetricType::Counter, prometheus::Counter::new(name, help)?)
    }

    pub(crate) fn counter_vec(&mut self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
        self.add(MetricType::Counter, IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    /// A counter for each reason. `frequent` ones begin at zero, since `increase()` does not see the first event of a series that
    /// begins with it; others get theirs when they occur.
    pub(crate) fn by_reason(&mut self, name: &str, help: &str, frequent: &[&str]) -> Result<IntCounterVec> {
        let counters = self.counter_vec(name, help, &["reason"])?;
        frequent.iter().for_each(|reason| _ = counters.with_label_values(&[reason]));
        Ok(counters)
    }

    pub(crate) fn counters<L: Label>(&mut self, name: &str, help: &str, label: &str) -> Result<Counters<L>> {
        let counters = self.counter_vec(name, help, &[label])?;
        Ok(Counters::new(|value: L| counters.with_label_values(&[value.as_str()])))
    }

    pub(crate) fn gauges<L: Label>(&mut self, name: &str, help: &str, label: &str) -> Result<Gauges<L>> {
        let gauges = self.gauge_vec(name, help, &[label])?;
        Ok(Gauges(Children::new(|value: L| gauges.with_label_values(&[value.as_str()]))))
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str) -> Result<IntGauge> {
        self.add(MetricType::Gauge, IntGauge::new(name, help)?)
    }

    pub(crate) fn float_gauge(&mut self, name: &str, help: &str) -> Result<prometheus::Gauge> {
        self.add(MetricType::Gauge, prometheus::Gauge::new(name, help)?)
    }

    pub(crate) fn gauge_vec(&mut self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec> {
        self.add(MetricType::Gauge, IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(crate) fn float_gauge_vec(&mut self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec> {
        self.add(MetricType::Gauge, GaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.add(MetricType::Histogram, Histogram::with_opts(opts)?)
    }

    pub(crate) fn histograms<L: Label>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        buckets: &[f64],
    ) -> Result<Histograms<L>> {
        let histograms = self.histogram_vec(name, help, &[label], buckets)?;
        Ok(Histograms(Children::new(|value: L| histograms.with_label_values(&[value.as_str()]))))
    }

    pub(crate) fn histogram_vec(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec> {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.add(MetricType::Histogram, HistogramVec::new(opts, labels)?)
    }

    fn add<C: Collector + Clone + 'static>(&mut self, kind: MetricType, collector: C) -> Result<C> {
        self.registry.register(Box::new(collector.clone()))?;
        self.catalogue.extend(collector.desc().into_iter().map(|desc| MetricInfo {
            name: desc.fq_name.clone(),
            kind,
            help: desc.help.clone(),
            labels: desc.variable_labels.clone(),
        }));
        Ok(collector)
    }
}
