//! The rules that keep strangers out. Each of these tests fails when its rule is switched off.

use super::client::{Answer, Server};

/// Paths of every kind: a page, an endpoint, a stream, one of other programs, nothing at all.
const PATHS: [&str; 6] =
    ["/", "/api/v1/health", "/api/v1/runs/x/events", "/api/v1/tasks/x/events", "/metrics", "/nothing/here"];

#[test]
fn a_name_of_another_site_is_refused_everywhere_although_the_token_is_right() {
    let server = Server::start();
    let bearer = format!("Bearer {}", server.token);
    let at = |path: &str, host: &str| {
        server.send(&format!("GET {path}"), &[("Host", host), ("Authorization", &bearer)], "").status
    };
    for path in PATHS {
        for host in ["evil.example", "localhost.evil.example:80", "0.0.0.0", ""] {
            assert_eq!(at(path, host), 403, "{path} {host}");
        }
        assert_ne!(at(path, "localhost:1234"), 403, "{path}");
    }
    // With `ssh -L` the port is another one.
    assert_eq!(at("/api/v1/health", "127.0.0.1:9"), 200);
}

#[test]
fn the_name_in_the_url_counts_too_and_there_is_one_host() {
    let server = Server::start();
    let bearer = format!("Bearer {}", server.token);
    let own = ("Host", "localhost");
    let with = |request: &str, headers: &[(&str, &str)]| {
        let all: Vec<_> = headers.iter().copied().chain([("Authorization", bearer.as_str())]).collect();
        server.send(request, &all, "").status
    };
    assert_eq!(with("GET http://evil.example/api/v1/health", &[own]), 403);
    assert_eq!(with("GET http://localhost/api/v1/health", &[own]), 200);
    assert_eq!(with("GET /api/v1/health", &[own, ("Host", "localhost")]), 400);
    assert_eq!(with("GET /api/v1/health", &[]), 400);
}

#[test]
fn a_page_of_another_site_is_refused_and_no_answer_invites_it() {
    let server = Server::start();
    let bearer = format!("Bearer {}", server.token);
    let from = |method: &str, path: &str, headers: &[(&str, &str)]| {
        let own = [("Host", "localhost:7171"), ("Authorization", bearer.as_str())];
        let all: Vec<_> = own.into_iter().chain(headers.iter().copied()).collect();
        let answer = server.send(&format!("{method} {path}"), &all, "");
        assert!(!answer.head.contains("access-control"), "{}", answer.head);
        answer.status
    };
    for path in PATHS {
        for origin in [
            "null",
            "http://evil.example",
            "https://localhost:7171",
            "http://localhost:7172",
            "http://localhost",
            "http://localhost:7171.evil.example",
            "",
        ] {
            assert_eq!(from("GET", path, &[("Origin", origin)]), 403, "{path} {origin}");
        }
        assert_ne!(from("GET", path, &[("Origin", "http://localhost:7171")]), 403, "{path}");
    }
    let twice = [("Origin", "http://localhost:7171"), ("Origin", "http://evil.example")];
    assert_eq!(from("GET", "/api/v1/health", &twice), 403);
    assert_eq!(from("POST", "/api/v1/logout", &[("Origin", "null")]), 403);
    assert_eq!(from("POST", "/api/v1/logout", &[("Origin", "http://localhost:7171")]), 204);
    let preflight = [("Origin", "http://evil.example"), ("Access-Control-Request-Method", "POST")];
    assert_eq!(from("OPTIONS", "/api/v1/runs", &preflight), 403);
}

#[test]
fn a_page_on_another_port_cannot_load_what_needs_no_origin() {
    let server = Server::start();
    let get = |path: &str, headers: &[(&str, &str)]| {
        let cookie = format!("sparktune-{}={}", server.address.port(), server.token);
        let own = [("Host", "localhost"), ("Cookie", cookie.as_str())];
        let all: Vec<_> = own.into_iter().chain(headers.iter().copied()).collect();
        server.send(&format!("GET {path}"), &all, "").status
    };
    let at = |headers: &[(&str, &str)]| get("/api/v1/health", headers);
    assert_eq!(at(&[("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Mode", "cors")]), 200);
    assert_eq!(at(&[("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "no-cors")]), 403);
    assert_eq!(at(&[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")]), 403);
    // Somebody follows a link, which may lead to the page and not to an endpoint.
    for site in ["same-site", "cross-site"] {
        let link = [("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", "navigate")];
        for (path, status) in [("/", 200), ("/api/docs/", 200), ("/api/v1/runs/none/report", 404)] {
            assert_eq!(get(path, &link), status, "{path}");
        }
        assert_eq!(get("/api/v1/white-paper/file", &link), 200);
        for path in ["/api/v1/health", "/api/v1/datasets/demo:train.jsonl/rejected", "/metrics"] {
            assert_eq!(get(path, &link), 403, "{path}");
        }
    }
}

#[test]
fn without_the_token_nothing_but_the_files_of_the_page_is_answered() {
    let server = Server::start();
    let ask = |path: &str, headers: &[(&str, &str)]| {
        let all: Vec<_> = [("Host", "localhost")].into_iter().chain(headers.iter().copied()).collect();
        server.send(&format!("GET {path}"), &all, "")
    };
    for path in PATHS.into_iter().filter(|path| *path != "/") {
        let answer = ask(path, &[]);
        assert_eq!(answer.status, 401, "{path}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
        assert!(answer.body.contains("Bearer") && !answer.body.contains(&server.token), "{}", answer.body);
        // An empty or a wrong token is none, wherever it stands.
        for wrong in ["Bearer ", "Bearer x", "Bearer", "Basic eDp4"] {
            assert_eq!(ask(path, &[("Authorization", wrong)]).status, 401, "{path} {wrong}");
        }
        assert_eq!(ask(&format!("{path}?token={}", server.token), &[]).status, 401, "{path}");
        assert_eq!(ask(path, &[("Cookie", "sparktune=x")]).status, 401, "{path}");
    }
    assert_eq!(ask("/", &[]).status, 200);
    assert_eq!(server.send("POST /", &[("Host", "localhost")], "").status, 401);
}

#[test]
fn the_printed_address_becomes_a_cookie_that_scripts_and_other_sites_cannot_use() {
    let server = Server::start();
    let own = ("Host", "localhost");
    let opened = server.send(&format!("GET /?token={}", server.token), &[own], "");
    assert_eq!((opened.status, opened.header("location")), (303, Some("/")));
    let cookie = opened.header("set-cookie").unwrap().to_owned();
    for part in ["httponly", "samesite=strict", "path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let pair = cookie.split(';').next().unwrap();
    assert_eq!(server.send("GET /api/v1/health", &[own, ("Cookie", pair)], "").status, 200);
    let wrong = server.send("GET /?token=0", &[own], "");
    assert_eq!((wrong.status, wrong.header("set-cookie")), (303, None));
    let foreign = server.send(&format!("GET /?token={}", server.token), &[("Host", "evil.example")], "");
    assert_eq!((foreign.status, foreign.header("set-cookie")), (403, None));
    let out = server.send("POST /api/v1/logout", &[own, ("Cookie", pair)], "");
    assert!(out.status == 204 && out.header("set-cookie").unwrap().contains("max-age=0"), "{}", out.head);
}

#[test]
fn every_answer_tells_a_browser_what_the_page_may_do() {
    let server = Server::start();
    let answers = [
        server.ask("GET /", ""),
        server.ask("GET /api/v1/health", ""),
        server.ask("GET /nothing", ""),
        server.ask("POST /api/v1/health", ""),
        server.send("GET /api/v1/health", &[("Host", "localhost")], ""),
        server.send("GET /api/v1/health", &[("Host", "evil.example")], ""),
    ];
    for answer in answers {
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "deny"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{}", answer.head);
        }
    }
}

#[test]
fn http_2_is_not_spoken_and_changing_to_it_is_not_possible() {
    let server = Server::start();
    let answer = server.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
    let bearer = format!("Bearer {}", server.token);
    let headers = [
        ("Host", "localhost"),
        ("Authorization", bearer.as_str()),
        ("Connection", "Upgrade, HTTP2-Settings"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAMAAABkAAQCAAAAAAIAAAAA"),
    ];
    let answer = server.send("GET /api/v1/health", &headers, "");
    assert_eq!(answer.status, 200);
    assert!(answer.head.starts_with("http/1.1") && answer.header("upgrade").is_none(), "{}", answer.head);
}

#[test]
fn a_request_inside_another_one_is_not_answered() {
    let server = Server::start();
    let inner = format!(
        "GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n",
        server.token
    );
    for lengths in
        ["Content-Length: 0\r\nTransfer-Encoding: chunked", "Content-Length: 5\r\nContent-Length: 6"]
    {
        let outer =
            format!("POST /api/v1/logout HTTP/1.1\r\nHost: localhost\r\n{lengths}\r\n\r\n0\r\n\r\n{inner}");
        let answer = server.raw(outer.as_bytes());
        let text = String::from_utf8_lossy(&answer);
        assert!(!text.contains("\"uptime_s\""), "{lengths}: {text}");
        assert!(answer.is_empty() || Answer::of(&answer).status >= 400, "{text}");
    }
}

#[test]
fn the_ids_of_requests_are_names_and_no_paths() {
    let server = Server::start();
    let secret = server.folder.path().join("secret");
    std::fs::create_dir_all(secret.join("events")).unwrap();
    std::fs::create_dir_all(server.runs_dir()).unwrap();
    std::fs::create_dir_all(server.runs_dir().join(".hidden/events")).unwrap();
    std::os::unix::fs::symlink(&secret, server.runs_dir().join("link")).unwrap();
    for id in ["..%2fsecret", "%2e%2e%2fsecret", ".hidden", "%2e", "a%00", "..%5csecret", "secret%2fevents"] {
        for request in ["GET", "DELETE"] {
            let answer = server.ask(&format!("{request} /api/v1/runs/{id}"), "");
            assert_eq!(answer.status, 404, "{request} {id}: {}", answer.body);
        }
    }
    for path in ["/v1/models/%ff", "/v1/models/a/%ff"] {
        let answer = server.ask(&format!("GET {path}"), "");
        assert_eq!((answer.status, answer.header("content-type")), (400, Some("application/json")));
        assert!(answer.body.contains("invalid_request_error"), "{}", answer.body);
    }
    // A link of this user is a run by the name of its folder, but deleting that is refused.
    assert_eq!(server.ask("DELETE /api/v1/runs/secret", "").status, 409);
    assert!(secret.is_dir() && server.runs_dir().join(".hidden").is_dir());
}
