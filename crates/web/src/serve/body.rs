//! The JSON body of a request.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{self, FromRequest};
use serde::de::DeserializeOwned;

use crate::refusal::Refusal;

/// The JSON body of a request. A body of another form is refused, with the expected form in the message.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: extract::Request, state: &S) -> Result<Self, Refusal> {
        Json::from_request(request, state).await.map(|Json(content)| Self(content)).map_err(|rejection| {
            let cure = match &rejection {
                JsonRejection::JsonDataError(_) => "`evenkeel config schema` describes the values",
                _ => "send JSON with Content-Type: application/json",
            };
            let said = rejection.body_text();
            let said = said.strip_prefix("Failed to deserialize the JSON body into the target type: ").unwrap_or(&said);
            Refusal::new(rejection.status().as_u16(), "invalid_request", evenkeel_policy::explain(said), cure)
        })
    }
}
