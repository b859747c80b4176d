//! The DevTools protocol: commands and their results, and events, as JSON over a WebSocket on loopback.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use crate::server::LONG;

/// A connection to a browser.
pub(crate) struct DevTools {
    socket: WebSocket<TcpStream>,
    last: u64,
    events: VecDeque<Value>,
}

impl DevTools {
    /// Connects to the browser that listens at this port.
    pub(crate) fn connect(port: u16, path: &str) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        let (socket, _) = tungstenite::client(format!("ws://127.0.0.1:{port}{path}"), stream).unwrap();
        Self { socket, last: 0, events: VecDeque::new() }
    }

    /// Sends a command, to a page if a session is given, and waits for its result.
    ///
    /// # Errors
    /// The browser refuses it.
    pub(crate) fn call(
        &mut self,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> Result<Value, String> {
        self.last += 1;
        let id = self.last;
        let mut command = json!({"id": id, "method": method, "params": params});
        if let Some(session) = session {
            command["sessionId"] = session.into();
        }
        self.socket.get_ref().set_read_timeout(Some(LONG)).unwrap();
        self.socket.send(Message::text(command.to_string())).unwrap();
        loop {
            let mut message = self.read().unwrap_or_else(|| panic!("the browser does not answer {method}"));
            if message["method"] == "Page.javascriptDialogOpening" {
                self.dismiss(&message);
            }
            if message["id"] != id {
                self.events.push_back(message);
            } else if let Some(error) = message.get("error") {
                return Err(format!("{method}: {error}"));
            } else {
                return Ok(message["result"].take());
            }
        }
    }

    /// Closes a dialog, which would hold up everything else. Nobody waits for the result.
    fn dismiss(&mut self, event: &Value) {
        self.last += 1;
        let params = json!({"accept": false});
        let command = json!({"id": self.last, "method": "Page.handleJavaScriptDialog", "params": params,
            "sessionId": event["sessionId"]});
        self.socket.send(Message::text(command.to_string())).unwrap();
    }

    /// Takes the events so far, after those that arrive within this time.
    pub(crate) fn events(&mut self, time: Duration) -> Vec<Value> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.socket.get_ref().set_read_timeout(Some(left)).unwrap();
            match self.read() {
                Some(event) => {
                    if event["method"] == "Page.javascriptDialogOpening" {
                        self.dismiss(&event);
                    }
                    self.events.push_back(event);
                }
                None => break,
            }
        }
        self.events.drain(..).collect()
    }

    /// Reads a message; `None` if none arrives in time.
    fn read(&mut self) -> Option<Value> {
        loop {
            match self.socket.read() {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
                Ok(_) => {}
                Err(tungstenite::Error::Io(error))
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    return None;
                }
                Err(error) => panic!("the browser has ended: {error}"),
            }
        }
    }
}
