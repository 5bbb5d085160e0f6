//! `geofold health`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;

use super::{ConfigArgs, Failure};

/// Maximum bytes of the response shown.
const MAX_SHOWN: usize = 4096;

/// Ask the local worker, collector or router whether it is alive: a health check for containers.
///
/// Asks admin.listen. Exit code 0: alive; 1: hangs or does not answer. Use the worker's configuration file and
/// environment.
#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Ask a collector at collector.listen. One that asks clients for certificates cannot be asked.
    #[arg(long)]
    collector: bool,
    /// Ask a router at route.listen. One that asks clients for certificates cannot be asked.
    #[arg(long, conflicts_with = "collector")]
    router: bool,
    /// Ask whether it is ready, and print the reasons if not. Do not restart a worker only for that.
    #[arg(long)]
    ready: bool,
    /// Timeout.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

pub(super) async fn health(args: HealthArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let (listen, has_tls) = match (args.collector, args.router) {
        (true, _) => (config.collector.listen, config.collector.tls_certificate.is_some()),
        (_, true) => (config.route.listen, config.route.tls_certificate.is_some()),
        (false, false) => (config.admin.listen, false),
    };
    let scheme = if has_tls { "https" } else { "http" };
    let path = if args.ready { "/readyz" } else { "/healthz" };
    let url = format!("{scheme}://{}{path}", reachable(listen));
    // Ignore proxies from the environment: the server is on this machine. Its certificate is for its clients' name of it.
    let client = reqwest::Client::builder()
        .no_proxy()
        .danger_accept_invalid_certs(has_tls)
        .timeout(args.timeout)
        .build()
        .context("making a client")?;
    let answer = client.get(&url).send().await;
    let mut answer =
        answer.with_context(|| format!("asking {url}: is it running, with this configuration?"))?;
    let status = answer.status();
    let mut said = Vec::new();
    while said.len() < MAX_SHOWN {
        let Some(chunk) = answer.chunk().await.with_context(|| format!("reading the answer of {url}"))?
        else {
            break;
        };
        said.extend_from_slice(&chunk[..chunk.len().min(MAX_SHOWN - said.len())]);
    }
    let said = String::from_utf8_lossy(&said);
    if status.is_success() {
        println!("{}", said.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    Err(anyhow!("{url} answers {status}: {}", said.trim_end()).into())
}

/// The address to connect to for a server that listens on `listen`: an unspecified address becomes loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_address_is_reached_on_loopback() {
        for (listen, asked) in
            [("0.0.0.0:9464", "127.0.0.1:9464"), ("[::]:9464", "[::1]:9464"), ("10.1.2.3:80", "10.1.2.3:80")]
        {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), asked);
        }
    }
}
