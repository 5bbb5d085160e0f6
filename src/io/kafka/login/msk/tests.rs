//! The signature is computed once more here, by the rules of SigV4 alone.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::*;

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_token_is_the_address_that_msk_expects() {
    let now = humantime::parse_rfc3339("2026-11-26T12:34:56Z").unwrap();
    for session in [None, Some("to/ken+=".to_owned())] {
        let keys = Credentials::new("AKID", "secret", session.clone(), None, "test");
        let address: Url = signed_address("eu-central-1", keys, now).unwrap().parse().unwrap();
        assert_eq!(address.host_str(), Some("kafka.eu-central-1.amazonaws.com"));

        let (mut signature, mut signed) = (String::new(), Vec::new());
        for pair in address.query().unwrap().split('&') {
            match pair.split_once('=').unwrap() {
                ("X-Amz-Signature", value) => signature = value.to_owned(),
                ("User-Agent", value) => assert!(value.starts_with("geofold")),
                _ => signed.push(pair),
            }
        }
        signed.sort_unstable();
        let query = signed.join("&");
        for part in [
            "Action=kafka-cluster%3AConnect",
            "X-Amz-Algorithm=AWS4-HMAC-SHA256",
            "X-Amz-Credential=AKID%2F20261126%2Feu-central-1%2Fkafka-cluster%2Faws4_request",
            "X-Amz-Date=20261126T123456Z",
            "X-Amz-Expires=900",
            "X-Amz-SignedHeaders=host",
        ] {
            assert!(signed.contains(&part), "{part}: {query}");
        }
        assert_eq!(query.contains("X-Amz-Security-Token=to%2Fken%2B%3D"), session.is_some(), "{query}");

        let request = format!(
            "GET\n/\n{query}\nhost:kafka.eu-central-1.amazonaws.com\n\nhost\n{}",
            hex(&Sha256::digest(b""))
        );
        let scope = "20261126/eu-central-1/kafka-cluster/aws4_request";
        let to_sign =
            format!("AWS4-HMAC-SHA256\n20261126T123456Z\n{scope}\n{}", hex(&Sha256::digest(request)));
        let key = scope.split('/').fold(b"AWS4secret".to_vec(), |key, part| mac(&key, part));
        assert_eq!(signature, hex(&mac(&key, &to_sign)), "{address}");
    }
}

#[tokio::test]
async fn a_token_ends_with_its_keys() {
    let now = SystemTime::now();
    for (left, seconds) in [(None, 900), (Some(60), 60), (Some(3600), 900)] {
        let end = left.map(|left| now + Duration::from_secs(left));
        let source = KeySource::Given(Credentials::new("AKID", "secret", None, end, "test"));
        let msk = Msk { region: "cn-north-1", keyring: Keyring::new(source).unwrap() };
        let token = msk.token(now).await.ok().unwrap();
        assert_eq!(token.end.duration_since(now).unwrap().as_secs(), seconds);
        let address = String::from_utf8(URL_SAFE_NO_PAD.decode(token.text).unwrap()).unwrap();
        assert!(address.starts_with("https://kafka.cn-north-1.amazonaws.com.cn/?Action="), "{address}");
    }
}
