//! The answer to a request that is refused or failed.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::io::database::DatabaseError;
use crate::ops::campaign::store::CampaignStoreError;

/// Clients that have to wait are asked to come back after this, in seconds.
const RETRY_AFTER: &str = "2";

/// Why a request is refused or failed, as the client sees it.
#[derive(Debug)]
pub(super) struct RequestProblem {
    status: StatusCode,
    pub(super) reason: String,
}

impl RequestProblem {
    pub(super) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into() }
    }

    pub(super) fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason)
    }
}

impl IntoResponse for RequestProblem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({ "error": self.reason }))).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::CONFLICT => {
                headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static(RETRY_AFTER));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

impl From<DatabaseError> for RequestProblem {
    fn from(error: DatabaseError) -> Self {
        tracing::warn!(%error, "a request about campaigns failed");
        // The text may name the database's host and user.
        match error.is_passing() {
            true => Self::new(StatusCode::SERVICE_UNAVAILABLE, "the database does not answer; try again"),
            false => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the database refused it; see the collector's log",
            ),
        }
    }
}

impl From<CampaignStoreError> for RequestProblem {
    fn from(error: CampaignStoreError) -> Self {
        match error {
            CampaignStoreError::Database(error) => error.into(),
            CampaignStoreError::Unknown(id) => {
                Self::new(StatusCode::NOT_FOUND, format!("campaign {id} does not exist"))
            }
            // Not in this state, and perhaps never: nothing to wait for.
            refused @ CampaignStoreError::Refused(..) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, refused.to_string())
            }
        }
    }
}
