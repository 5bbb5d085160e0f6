use std::net::SocketAddr;

use reqwest::{Method, RequestBuilder};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::*;
use crate::io::database::tests::{Fresh, each};
use crate::ops::admin;
use crate::ops::campaign::CampaignState;
use crate::support::config::ByteSize;

const TOKEN: &str = "abc-123";

struct Server {
    address: SocketAddr,
    campaigns: CampaignRoutes,
    store: CampaignStore,
    client: reqwest::Client,
    _fresh: Fresh,
    _stop: tokio_util::sync::DropGuard,
}

impl Server {
    async fn closed() -> Self {
        let fresh = each().await.swap_remove(0);
        let store = CampaignStore::new(fresh.database.clone());
        store.prepare().await.unwrap();
        let mut config = Config::default();
        config.kafka.topic = "documents".to_owned();
        config.campaigns.bearer_token = Some(Secret::new(TOKEN));
        config.campaigns.request_max_bytes = ByteSize::new(1000);
        let (supervisor, stop) = (Supervisor::new().0, CancellationToken::new());
        let campaigns = CampaignRoutes::new(&config, &supervisor, stop.clone()).unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let (address, _) = admin::serve(listen, campaigns.routes(), stop.clone(), &supervisor).await.unwrap();
        let (client, stop) = (reqwest::Client::new(), stop.drop_guard());
        Self { address, campaigns, store, client, _fresh: fresh, _stop: stop }
    }

    async fn open() -> Self {
        let server = Self::closed().await;
        server.campaigns.open(server.store.clone());
        server
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address))
    }

    async fn ask(&self, method: Method, path: &str, list: &str) -> (u16, Value) {
        self.answer(self.request(method, path).bearer_auth(TOKEN).body(list.to_owned())).await
    }

    async fn answer(&self, request: RequestBuilder) -> (u16, Value) {
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, if text.is_empty() { Value::Null } else { serde_json::from_str(&text).expect(&text) })
    }

    async fn post(&self, query: &str, key: Option<&str>, list: &str) -> (u16, Value) {
        let request = self.request(Method::POST, &format!("/campaigns?{query}"));
        let request = key.into_iter().fold(request, |request, key| request.header(KEY, key));
        self.answer(request.bearer_auth(TOKEN).body(list.to_owned())).await
    }

    async fn ids(&self) -> Vec<i64> {
        self.store.list().await.unwrap().iter().map(|status| status.id).collect()
    }
}

#[tokio::test]
async fn only_requests_with_the_token_are_answered() {
    let server = Server::open().await;
    for (method, path) in [
        (Method::GET, "/campaigns"),
        (Method::POST, "/campaigns?action=delete"),
        (Method::GET, "/campaigns/1"),
        (Method::DELETE, "/campaigns/1"),
        (Method::POST, "/campaigns/1/cancel"),
        (Method::POST, "/campaigns/1/rate?per_second=1"),
    ] {
        for token in [None, Some(""), Some("abc-124"), Some("abc-12"), Some("abc-1234")] {
            let request = server.request(method.clone(), path).body("a\n");
            let request = token.into_iter().fold(request, |request, token| request.bearer_auth(token));
            let (status, answer) = server.answer(request).await;
            assert_eq!(status, 401, "{method} {path} {token:?}: {answer}");
            assert!(!answer.to_string().contains(TOKEN));
        }
        let basic = server.request(method.clone(), path).header("authorization", format!("Basic {TOKEN}"));
        assert_eq!(server.answer(basic).await.0, 401);
    }
    assert!(server.ids().await.is_empty());
    assert_eq!(server.ask(Method::GET, "/campaigns", "").await.0, 200);
    let without = CampaignRoutes::new(&Config::default(), &Supervisor::new().0, CancellationToken::new());
    assert!(without.is_none(), "no token, no path");
}

#[tokio::test]
async fn a_repeated_request_makes_one_campaign() {
    let server = Server::open().await;
    let query = "action=touch&name=order%2017&rate=500&chunk=2";
    let (status, made) = server.post(query, Some("order-17"), "a\nb\n\nb\n{\"id\":\"c\"}\n").await;
    assert_eq!((status, &made["ids"], &made["chunks"]), (201, &json!(3), &json!(2)), "{made}");
    let expected = json!(["order 17", "touch", "documents", "ready", 500]);
    let told = ["name", "action", "topic", "state", "rate_limit"].map(|key| made[key].clone());
    assert_eq!(json!(told), expected);
    let (status, again) = server.post(query, Some("order-17"), "a\n").await;
    assert_eq!((status, &again["id"], &again["ids"]), (200, &made["id"], &json!(3)));
    let (status, other) = server.post("action=delete", Some("order-17"), "a\n").await;
    assert!(status == 422 && other["error"].as_str().unwrap().contains("another key"), "{other}");
    // Without a key each is a request of its own.
    for _ in 0..2 {
        assert_eq!(server.post("action=touch", None, "a\n").await.0, 201);
    }
    assert_eq!(server.ids().await.len(), 3);
    assert_eq!(server.store.requested("documents").await.unwrap().len(), 3);
    assert!(server.store.requested("other").await.unwrap().is_empty());
}

#[tokio::test]
async fn of_two_requests_with_one_key_at_the_same_time_one_makes_the_campaign() {
    let server = Server::open().await;
    let both = futures::join!(
        server.post("action=touch", Some("k"), "a\n"),
        server.post("action=touch", Some("k"), "a\n")
    );
    let mut statuses = [both.0.0, both.1.0];
    statuses.sort_unstable();
    assert!(matches!(statuses, [200 | 201, 201 | 409]) && statuses.contains(&201), "{both:?}");
    assert_eq!(server.ids().await.len(), 1);
    let (status, _) = server.post("action=touch", Some("k"), "a\n").await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn what_is_refused_leaves_nothing() {
    let server = Server::open().await;
    let (long, large) = ("x".repeat(900), "x\n".repeat(501));
    let key = "k".repeat(201);
    for (query, key, list, status, says) in [
        ("", None, "a\n", 400, "POST /campaigns?action=touch"),
        ("action=burn", None, "a\n", 400, "POST /campaigns?action=touch"),
        ("action=touch&colour=red", None, "a\n", 400, "POST /campaigns?action=touch"),
        ("action=refeed", None, "a\n", 400, "[source]"),
        ("action=touch&rate=0", None, "a\n", 400, "rate"),
        ("action=touch&chunk=0", None, "a\n", 400, "chunk"),
        ("action=touch&name=%00", None, "a\n", 400, "name"),
        ("action=touch", Some(""), "a\n", 400, "Idempotency-Key"),
        ("action=touch", Some(key.as_str()), "a\n", 400, "Idempotency-Key"),
        ("action=touch", Some("k"), "", 400, "no document"),
        ("action=touch", Some("k"), "\n\n", 400, "no document"),
        ("action=touch", Some("k"), "a\nb", 400, "may have been cut"),
        ("action=touch", Some("k"), large.as_str(), 413, "request_max_bytes"),
    ] {
        let (got, answer) = server.post(query, key, list).await;
        let error = answer["error"].as_str().unwrap();
        assert!(got == status && error.contains(says), "{query} {key:?}: {got} {error}");
        assert!(server.ids().await.is_empty(), "{query}");
    }
    // An id that cannot be one is a failure of its campaign.
    let (status, made) = server.post("action=touch", Some("k"), &format!("{long}\na\n")).await;
    assert_eq!(
        (status, &made["ids"], &made["failed"]),
        (201, &json!(2), &json!(1)),
        "the key is free; {made}"
    );
    assert!(made["failures"][0]["reason"].as_str().unwrap().contains("bytes"), "{made}");
}

#[tokio::test]
async fn a_client_that_leaves_leaves_nothing() {
    let server = Server::open().await;
    for begin in ["content-length: 900\r\n\r\na\nb\n", "transfer-encoding: chunked\r\n\r\n4\r\na\nb\n\r\n"] {
        let mut client = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "POST /campaigns?action=touch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nidempotency-key: k\r\n"
        );
        client.write_all((head + begin).as_bytes()).await.unwrap();
        while server.ids().await.is_empty() {
            tokio::task::yield_now().await;
        }
        let (status, answer) = server.post("action=touch", Some("k"), "a\n").await;
        assert_eq!(status, 409, "its list is being received: {answer}");
        drop(client);
        while !server.ids().await.is_empty() {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(server.post("action=touch", Some("k"), "a\n").await.0, 201);
}

#[tokio::test]
async fn lists_are_received_by_a_few_clients_at_the_same_time() {
    let server = Server::open().await;
    let permits: Vec<_> = (0..MAX_LISTS).map(|_| server.campaigns.0.lists.try_acquire().unwrap()).collect();
    assert_eq!(server.post("action=touch", Some("k"), "a\n").await.0, 429);
    assert_eq!(server.ask(Method::GET, "/campaigns", "").await.0, 200);
    drop(permits);
    assert_eq!(server.post("action=touch", Some("k"), "a\n").await.0, 201);
}

#[tokio::test]
async fn campaigns_are_shown_and_controlled() {
    let server = Server::open().await;
    let id = server.post("action=touch&paused=true", None, "a\n").await.1["id"].as_i64().unwrap();
    let ask = async |method, path: &str| server.ask(method, &format!("/campaigns/{id}{path}"), "").await;
    assert_eq!(ask(Method::GET, "").await.1["state"], "paused");
    for (path, key, value) in [
        ("/resume", "state", json!("ready")),
        ("/pause", "state", json!("paused")),
        ("/rate?per_second=7", "rate_limit", json!(7)),
        ("/rate?per_second=none", "rate_limit", json!(0)),
        ("/retry", "state", json!("paused")),
    ] {
        let (status, answer) = ask(Method::POST, path).await;
        assert_eq!((status, &answer[key]), (200, &value), "{path}: {answer}");
    }
    assert_eq!(ask(Method::DELETE, "").await.0, 422, "it is not over");
    assert_eq!(ask(Method::POST, "/cancel").await.1["state"], "cancelled");
    assert_eq!(ask(Method::POST, "/resume").await.0, 422);
    assert_eq!(ask(Method::POST, "/burn").await.0, 404);
    assert_eq!(ask(Method::POST, "/rate?per_second=0").await.0, 400);
    assert_eq!(server.ask(Method::GET, "/campaigns", "").await.1["campaigns"][0]["id"], id);
    assert_eq!(ask(Method::DELETE, "").await.0, 204);
    assert_eq!(ask(Method::GET, "").await.0, 404);
}

#[tokio::test]
async fn requests_wait_for_the_database() {
    let server = Server::closed().await;
    let request = server.request(Method::GET, "/campaigns").bearer_auth(TOKEN);
    let answer = request.send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].as_bytes()), (503, &b"2"[..]));
    server.campaigns.open(server.store.clone());
    assert_eq!(server.ask(Method::GET, "/campaigns", "").await.0, 200);
}

#[tokio::test]
async fn the_key_of_a_list_whose_receiver_died_is_free_again() {
    let server = Server::open().await;
    let wanted = Wanted { action: CampaignAction::Touch, name: None, rate: None, chunk: None, paused: false };
    let mut headers = HeaderMap::new();
    headers.insert(KEY, "k".parse().unwrap());
    let new = server.campaigns.0.new_campaign(&wanted, &headers).unwrap();
    let dead = server.store.create(&new).await.unwrap().unwrap();
    assert_eq!(server.post("action=touch", Some("k"), "a\n").await.0, 409);
    let mut transaction = server.store.database.begin("ageing").await.unwrap();
    transaction.execute("UPDATE campaign SET beat = 1", &[]).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(server.post("action=touch", Some("k"), "a\n").await.0, 201);
    assert_eq!(server.store.status(dead).await.unwrap().state, CampaignState::Cancelled);
}
