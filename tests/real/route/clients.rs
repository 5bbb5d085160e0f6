//! The official clients on a router over real servers.

use geofold::geoshard::GeoshardMap;

use super::router::Router;
use crate::official_clients::{Language, documents, expected, other, rust};
use crate::support::{World, WorldOptions};

#[test]
fn official_clients_work_unchanged_through_the_router() {
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");
    let config = vec![("geoshards", format!("map = {map:?}"))];
    let world = World::new(WorldOptions { config, ..WorldOptions::default() });
    let map = GeoshardMap::load(map.as_ref()).unwrap();
    assert_eq!(world.stack.bulk(&documents(&map, &world.name))["errors"], false);
    world.stack.ask("POST", &format!("/{}-s*/_refresh", world.name), None);
    let router = Router::start(&world);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(rust(&router.url(), &world.name)), expected(false), "Rust");
    for language in [Language::Python, Language::JavaScript] {
        if let Some(found) = other(language, &router.url(), &world.name) {
            assert_eq!(found, expected(false), "{language:?}");
        }
    }
}
