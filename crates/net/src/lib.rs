//! Connections to others: dialling NBD servers ([`dial`]), TLS in both roles ([`tls`]) and the HTTP client ([`http`]).

pub mod dial;
pub mod http;
pub mod tls;
