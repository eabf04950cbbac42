//! Network connections: connecting to NBD servers ([`dial`]), TLS as client and as server ([`tls`]), and the HTTP client
//! ([`http`]).

pub mod dial;
pub mod http;
pub mod tls;
