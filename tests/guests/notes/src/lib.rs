//! Plain functions in the shapes that are usual elsewhere: a package without a version, records of the world and
//! of an interface within results and lists, parameters that may be left out, answers that carry their own error.
#![allow(
    clippy::too_many_arguments,
    reason = "the generated code has what the functions have"
)]

wit_bindgen::generate!({ world: "notes-world", path: "wit" });

use exports::tests::notes::graph;

struct Notes;

export!(Notes);

impl graph::Guest for Notes {
    fn add_notes(notes: Vec<graph::Note>) -> Result<Vec<graph::Note>, String> {
        match notes.is_empty() {
            true => Err("no notes".to_owned()),
            false => Ok(notes),
        }
    }

    fn remove_notes(titles: Vec<String>) -> Result<(), String> {
        match titles.first() {
            Some(title) => Err(format!("no note is called {title}")),
            None => Ok(()),
        }
    }

    fn read_notes() -> Result<graph::Notes, String> {
        Ok(graph::Notes {
            notes: vec![graph::Note {
                title: "a".to_owned(),
                lines: vec!["1".to_owned()],
            }],
            links: vec![graph::Link {
                from_note: "a".to_owned(),
                to_note: "a".to_owned(),
            }],
        })
    }

    fn look_up(note_title: String, topic: Option<String>, tokens: Option<u32>) -> graph::Answer {
        graph::Answer {
            success: false,
            found: Vec::new(),
            error: Some(format!("{note_title} {topic:?} {tokens:?}")),
        }
    }

    fn now() -> String {
        "now".to_owned()
    }
}

impl Guest for Notes {
    fn path_exists(path: String) -> Result<bool, String> {
        Ok(path == "/")
    }

    fn list_folder(path: String) -> Result<Vec<String>, String> {
        Ok(vec![path, "b".to_owned()])
    }

    fn search_files(
        root: String,
        literal: bool,
        glob: Option<String>,
        max_results: Option<u32>,
    ) -> Result<Hits, String> {
        Ok(Hits {
            hits: vec![Hit {
                path: format!("{root} {glob:?}"),
                line_number: u64::from(max_results.unwrap_or(200)),
            }],
            truncated: literal,
        })
    }
}
