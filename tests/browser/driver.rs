//! The driver of the browser itself: what it must notice, and what it must be able to do.

use std::fs;
use std::time::Duration;

use crate::chromium::Page;

/// If the browser did not notice these, the tests of the page could not fail.
#[test]
fn what_goes_wrong_in_a_page_is_noticed() {
    const WRONG: &str = "<title>x</title><button onclick=\"alert('asked')\">Ask</button><input id=field><select id=choice>\
         <option value=a>a</option><option value=b>b</option></select><img src=http://127.0.0.9:9/x.png>\
         <script>console.error('complained'); setTimeout(() => { throw new Error('thrown'); });\
         addEventListener('keydown', (e) => document.title = e.key);</script>";
    let Some(mut page) = Page::start() else { return };
    let file = page.place.path().join("wrong.html");
    fs::write(&file, WRONG).unwrap();
    page.open(&format!("file://{}", file.display()));
    page.fill("#field", "first");
    page.fill("#field", "second");
    assert_eq!(page.eval("document.querySelector('#field').value"), "second");
    page.choose("#choice", "b");
    assert_eq!(page.eval("Promise.resolve(document.querySelector('#choice').value)"), "b");
    page.key("Escape");
    assert_eq!(page.eval("document.title"), "Escape");
    page.press("Ask");
    page.listen(Duration::from_millis(300));
    for trouble in ["console: ", "exception: ", "dialog: \"asked\"", "log: "] {
        assert!(
            page.troubles.iter().any(|found| found.starts_with(trouble)),
            "{trouble}: {:#?}",
            page.troubles
        );
    }
    assert!(page.requests.iter().any(|url| url == "http://127.0.0.9:9/x.png"), "{:#?}", page.requests);
    let is_refused =
        |page: &mut Page| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| page.is_well(1))).is_err();
    assert!(is_refused(&mut page));
    page.troubles.clear();
    assert!(is_refused(&mut page), "a request to another machine alone is refused too");
    assert!(fs::read(page.picture("driver")).unwrap().starts_with(b"\x89PNG\r\n"));
}
