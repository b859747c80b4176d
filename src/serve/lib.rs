//! The page and the HTTP API: an interface over `sparktune_app`.
