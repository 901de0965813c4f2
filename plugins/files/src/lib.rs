//! Files in the folders that are granted. A folder stands where the operator put it in the guest, such as `/notes`,
//! and the host lets nothing out of it: what is checked here only makes better messages.

use std::fs;

use agentloop_sdk::{Result, ToolError, progress, tool, tools};

use crate::{
    folders::{Place, place},
    search::Needle,
    text::{MAX_FILE_BYTES, line_of, lines, read_text},
    walk::{Found, Kind, walk},
};

mod folders;
mod search;
mod text;
mod walk;
mod write;

tools![list_files, read_file, search_files, write_file, edit_file];

/// Text in one answer, in bytes. Models lose the thread in more.
const MAX_ANSWER: usize = 64 << 10;
const MAX_LISTED: usize = 1_000;
const MAX_MATCHES: usize = 200;

/// List files and folders, in the order of their names. Folders end with `/`, and files stand with their size.
///
/// Without a path it lists the folders that are granted.
#[tool(
    read_only,
    closed_world,
    folder("*", read, reason = "to list the files in it")
)]
fn list_files(
    /// The absolute path of a folder, such as `/notes`
    #[default("/".into())]
    path: String,
    /// How many levels of folders to open
    #[default(1)]
    depth: u8,
    /// Only files whose name or path below `path` matches, such as `*.md` or `src/**/*.rs`
    glob: Option<String>,
) -> Result<String> {
    let matches = search::globs(glob.as_deref())?;
    let folders = match place(&path)? {
        Place::Inside(folder) => vec![folder],
        // As files they would only be names to ask for.
        Place::Above(folders) if depth <= 1 && glob.is_none() => {
            return Ok(folders
                .iter()
                .map(|folder| format!("{folder}/\n"))
                .collect());
        }
        Place::Above(folders) => folders,
    };
    let mut listed = Vec::new();
    let mut walked = walk(&folders, depth.into(), |found| {
        if glob.is_some() && (found.kind == Kind::Folder || !matches(&found)) {
            return Ok(true);
        }
        listed.push(match found.kind {
            Kind::File(size) => format!("{} ({size} bytes)", found.path),
            Kind::Folder => format!("{}/", found.path),
            Kind::Link => format!("{} (a link)", found.path),
            Kind::Other => format!("{} (neither file nor folder)", found.path),
        });
        Ok(listed.len() < MAX_LISTED)
    })?;
    if listed.len() == MAX_LISTED {
        walked.note(format!(
            "only the first {MAX_LISTED} are listed: name a folder below, or give a `glob`"
        ));
    }
    if listed.is_empty() {
        walked.note("there is nothing".into());
    }
    Ok(listed.join("\n") + &walked.notes())
}

/// Read a text file, or some of its lines.
///
/// Long files come in pieces, and a note then says how to go on.
#[tool(
    read_only,
    closed_world,
    folder("*", read, reason = "to read the files in it")
)]
fn read_file(
    /// The absolute path, such as `/notes/todo.txt`
    path: String,
    /// The first line to read, from 1
    #[default(1)]
    start_line: usize,
    /// How many lines to read at most
    #[default(2_000)]
    max_lines: usize,
) -> Result<(String, Option<String>)> {
    let path = place(&path)?.file()?;
    let text = read_text(&path)?;
    if text.is_empty() {
        return Ok((String::new(), Some(format!("[`{path}` is empty]"))));
    }
    let total = lines(&text).count();
    if start_line == 0 || max_lines == 0 {
        return Err(ToolError::invalid_arguments(
            "lines are counted from 1, and at least one has to be read",
        ));
    }
    if start_line > total {
        return Err(ToolError::invalid_arguments(format!(
            "`{path}` has {total} lines: there is no line {start_line}"
        )));
    }
    let mut piece = String::new();
    let mut next = start_line;
    for line in lines(&text).skip(start_line - 1).take(max_lines) {
        if piece.len() + line.len() > MAX_ANSWER {
            break;
        }
        piece.push_str(line);
        next += 1;
    }
    if next == start_line {
        let line = lines(&text).nth(start_line - 1).unwrap_or_default();
        piece.push_str(&line[..line.floor_char_boundary(MAX_ANSWER)]);
        return Ok((
            piece,
            Some(format!(
                "[line {start_line} of {total} is cut: it has {} bytes, and {MAX_ANSWER} are given; go on with start_line = {}]",
                line.len(),
                start_line + 1
            )),
        ));
    }
    let note = (start_line > 1 || next <= total).then(|| {
        let rest = if next <= total {
            format!("; go on with start_line = {next}")
        } else {
            String::new()
        };
        format!("[lines {start_line} to {} of {total}{rest}]", next - 1)
    });
    Ok((piece, note))
}

/// Search text files for a text or a regular expression. Gives `path:line: text` for each line that has it.
///
/// Searches all folders below `path`, or all that are granted.
#[tool(
    read_only,
    closed_world,
    folder("*", read, reason = "to search the files in it")
)]
fn search_files(
    /// What to find in a line
    pattern: String,
    /// The absolute path of a folder or file, such as `/notes`
    #[default("/".into())]
    path: String,
    /// Take `pattern` as a regular expression instead of as it stands
    #[default(false)]
    regex: bool,
    /// Take upper and lower case as the same
    #[default(false)]
    ignore_case: bool,
    /// Only files whose name or path below `path` matches, such as `*.md` or `src/**/*.rs`
    glob: Option<String>,
) -> Result<String> {
    let needle = Needle::new(&pattern, regex, ignore_case)?;
    let matches = search::globs(glob.as_deref())?;
    let folders = match place(&path)? {
        Place::Inside(folder) => vec![folder],
        Place::Above(folders) => folders,
    };
    let mut answer = String::new();
    let (mut hits, mut files, mut too_large, mut not_text) = (0, 0, 0, 0);
    let mut full = false;
    let mut walked = walk(&folders, usize::MAX, |found: Found<'_>| {
        let Kind::File(size) = found.kind else {
            return Ok(true);
        };
        if !matches(&found) {
            return Ok(true);
        }
        if size > MAX_FILE_BYTES {
            too_large += 1;
            return Ok(true);
        }
        files += 1;
        if files % 100 == 0 {
            progress(files, None, found.path);
        }
        let Ok(bytes) = fs::read(found.path) else {
            not_text += 1;
            return Ok(true);
        };
        if text::is_binary(&bytes) {
            not_text += 1;
            return Ok(true);
        }
        let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = String::from_utf8_lossy(line);
            let Some(excerpt) = needle.excerpt(&line) else {
                continue;
            };
            hits += 1;
            answer.push_str(&format!("{}:{}: {excerpt}\n", found.path, number + 1));
            full = hits == MAX_MATCHES || answer.len() > MAX_ANSWER;
            if full {
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    if full {
        walked.note(format!(
            "only the first {hits} lines are given: search for something rarer, in a folder below, or with a `glob`"
        ));
    } else {
        walked.note(format!("matching lines: {hits}, files searched: {files}"));
    }
    if not_text > 0 {
        walked.note(format!(
            "files left out since they are not text: {not_text}"
        ));
    }
    if too_large > 0 {
        walked.note(format!(
            "files left out since they have more than {MAX_FILE_BYTES} bytes: {too_large}"
        ));
    }
    Ok(answer.trim_end().to_owned() + &walked.notes())
}

/// Write a text file, with the folders that lead to it.
///
/// A file that exists already is only replaced with `overwrite`; to change a part of one, use `edit_file`.
#[tool(
    idempotent,
    closed_world,
    folder("*", write, reason = "to write files in it")
)]
fn write_file(
    /// The absolute path, such as `/notes/todo.txt`
    path: String,
    /// All that the file is to hold
    text: String,
    /// Replace the file where it exists
    #[default(false)]
    overwrite: bool,
) -> Result<String> {
    let path = place(&path)?.file()?;
    let replaced = write::whole(&path, &text, overwrite)?;
    let verb = if replaced { "replaced" } else { "created" };
    Ok(format!(
        "{verb} `{path}`: {} lines, {} bytes",
        lines(&text).count(),
        text.len()
    ))
}

/// Replace a text in a file by another one. The text has to be given exactly as it stands in the file, and long enough
/// to stand there only once, unless `all` is set.
#[tool(closed_world, folder("*", write, reason = "to change files in it"))]
fn edit_file(
    /// The absolute path, such as `/notes/todo.txt`
    path: String,
    /// The text to replace, white space and line ends included
    old: String,
    /// What to put in its place; empty takes it out
    new: String,
    /// Replace it wherever it stands
    #[default(false)]
    all: bool,
) -> Result<String> {
    let path = place(&path)?.file()?;
    if old.is_empty() || old == new {
        return Err(ToolError::invalid_arguments(
            "`old` has to be a text that stands in the file, and `new` another one",
        ));
    }
    let text = read_text(&path)?;
    let places: Vec<usize> = text
        .match_indices(&old)
        .map(|(at, _)| line_of(&text, at))
        .collect();
    let numbers = |count: usize| {
        let some: Vec<String> = places.iter().take(count).map(usize::to_string).collect();
        let more = if places.len() > count { ", …" } else { "" };
        format!("{}{more}", some.join(", "))
    };
    match places.as_slice() {
        [] => Err(ToolError::new(format!(
            "`{path}` does not have the text `old`{}; read the file, and copy the text from there",
            search::nearly(&text, &old)
        ))),
        [_, _, ..] if !all => Err(ToolError::new(format!(
            "`{path}` has the text `old` {} times, at lines {}: give more of the text around it, or set `all`",
            places.len(),
            numbers(10)
        ))),
        _ => {
            write::replace(&path, &text.replace(&old, &new))?;
            Ok(format!(
                "replaced {} in `{path}`, at {} {}",
                if places.len() == 1 {
                    "1 text".into()
                } else {
                    format!("{} texts", places.len())
                },
                if places.len() == 1 { "line" } else { "lines" },
                numbers(20)
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> (TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = root.to_str().unwrap().to_owned();
        (dir, root)
    }

    fn without(root: &str, text: String) -> String {
        text.replace(root, "")
    }

    #[test]
    fn files_are_listed_in_order() {
        let (_dir, root) = folder(&[
            ("b.txt", "12"),
            ("a/z.md", "1"),
            ("a/c/d.md", ""),
            ("B", ""),
        ]);
        let list = |depth, glob: Option<&str>| {
            without(
                &root,
                list_files(root.clone(), depth, glob.map(Into::into)).unwrap(),
            )
        };
        assert_eq!(list(1, None), "/B (0 bytes)\n/a/\n/b.txt (2 bytes)");
        assert_eq!(
            list(3, None),
            "/B (0 bytes)\n/a/\n/a/c/\n/a/c/d.md (0 bytes)\n/a/z.md (1 bytes)\n/b.txt (2 bytes)"
        );
        assert_eq!(
            list(3, Some("*.md")),
            "/a/c/d.md (0 bytes)\n/a/z.md (1 bytes)"
        );
        assert_eq!(list(3, Some("a/*.md")), "/a/z.md (1 bytes)");
        assert_eq!(list(3, Some("*.rs")), "\n[there is nothing]");
        list_files(root.clone(), 1, Some("[".into())).unwrap_err();
        let error = list_files(format!("{root}/b.txt"), 1, None).unwrap_err();
        assert!(error.message().contains("`read_file`"), "{error}");
    }

    #[test]
    fn long_lists_are_cut() {
        let files: Vec<String> = (0..1_010).map(|n| format!("{n:04}")).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|name| (name.as_str(), "")).collect();
        let (_dir, root) = folder(&files);
        let list = list_files(root.clone(), 1, None).unwrap();
        assert_eq!(
            list.lines().filter(|line| line.contains("bytes)")).count(),
            MAX_LISTED
        );
        assert!(list.ends_with("or give a `glob`]"), "{list}");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_named_and_not_followed() {
        let (_dir, root) = folder(&[("a/b.txt", "needle")]);
        std::os::unix::fs::symlink("..", format!("{root}/a/up")).unwrap();
        let list = list_files(root.clone(), 9, None).unwrap();
        assert!(list.ends_with("/a/up (a link)"), "{list}");
        let found = search_files("needle".into(), root, false, false, None).unwrap();
        assert!(
            found.ends_with("[matching lines: 1, files searched: 1]"),
            "{found}"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn names_that_are_not_text_are_left_out() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let (dir, root) = folder(&[("a", "")]);
        fs::write(dir.path().join(OsStr::from_bytes(b"\xff")), "").unwrap();
        let list = without(&root, list_files(root.clone(), 1, None).unwrap());
        assert_eq!(
            list,
            "/a (0 bytes)\n[names left out since they are not UTF-8: 1]"
        );
    }

    #[test]
    fn files_are_read_in_pieces() {
        let (_dir, root) = folder(&[("a", "one\r\ntwo\nthree"), ("empty", ""), ("bin", "a\0b")]);
        let read = |start, count| read_file(format!("{root}/a"), start, count);
        assert_eq!(read(1, 100), Ok(("one\r\ntwo\nthree".into(), None)));
        assert_eq!(
            read(1, 2),
            Ok((
                "one\r\ntwo\n".into(),
                Some("[lines 1 to 2 of 3; go on with start_line = 3]".into())
            ))
        );
        assert_eq!(
            read(3, 1),
            Ok(("three".into(), Some("[lines 3 to 3 of 3]".into())))
        );
        assert!(read(4, 1).unwrap_err().message().contains("3 lines"));
        read(0, 1).unwrap_err();
        read(1, 0).unwrap_err();
        let error = read_file(format!("{root}/bin"), 1, 1).unwrap_err();
        assert!(error.message().contains("not text"), "{error}");
        let error = read_file(format!("{root}/none"), 1, 1).unwrap_err();
        assert!(
            error
                .message()
                .contains(&format!("`{root}/none` does not exist")),
            "{error}"
        );
        let error = read_file(root.clone(), 1, 1).unwrap_err();
        assert!(error.message().contains("`list_files`"), "{error}");
        let (text, note) = read_file(format!("{root}/empty"), 1, 1).unwrap();
        assert!(text.is_empty() && note.unwrap().contains("empty"));
    }

    #[test]
    fn large_files_are_read_in_pieces_too() {
        let line = "ä".repeat(500) + "\n";
        let (_dir, root) = folder(&[("a", &line.repeat(100)), ("b", &"ä".repeat(40_000))]);
        let (text, note) = read_file(format!("{root}/a"), 1, 2_000).unwrap();
        assert_eq!(text, line.repeat(65));
        assert_eq!(
            note.unwrap(),
            "[lines 1 to 65 of 100; go on with start_line = 66]"
        );
        let (text, note) = read_file(format!("{root}/b"), 1, 2_000).unwrap();
        assert_eq!(text.len(), MAX_ANSWER);
        assert!(note.unwrap().contains("is cut"));
    }

    #[test]
    fn files_are_searched() {
        let (_dir, root) = folder(&[
            ("a.md", "Tea\nice tea\n"),
            ("sub/b.rs", "let tea = 1;\r\n"),
            ("c.bin", "tea\0"),
        ]);
        let find = |pattern: &str, regex, ignore_case, glob: Option<&str>| {
            let found = search_files(
                pattern.into(),
                root.clone(),
                regex,
                ignore_case,
                glob.map(Into::into),
            );
            without(&root, found.unwrap())
        };
        assert_eq!(
            find("tea", false, false, None),
            "/a.md:2: ice tea\n/sub/b.rs:1: let tea = 1;\n[matching lines: 2, files searched: 3]\n[files left out since they are not text: 1]"
        );
        assert_eq!(
            find("tea", false, true, Some("*.md")),
            "/a.md:1: Tea\n/a.md:2: ice tea\n[matching lines: 2, files searched: 1]"
        );
        assert_eq!(
            find("^t.a$", true, true, Some("*.md")),
            "/a.md:1: Tea\n[matching lines: 1, files searched: 1]"
        );
        assert_eq!(
            find("t.a", false, false, Some("*.md")),
            "\n[matching lines: 0, files searched: 1]"
        );
        assert_eq!(
            find("", false, false, Some("**/*.rs")),
            "/sub/b.rs:1: let tea = 1;\n[matching lines: 1, files searched: 1]"
        );
        for (pattern, regex) in [("(", true), ("x{1,100000}{1,100000}", true)] {
            let error = search_files(pattern.into(), root.clone(), regex, false, None).unwrap_err();
            assert!(matches!(error, ToolError::InvalidArguments(_)), "{error:?}");
        }
        let in_file =
            search_files("Tea".into(), format!("{root}/a.md"), false, false, None).unwrap();
        assert!(
            in_file.ends_with("/a.md:1: Tea\n[matching lines: 1, files searched: 1]"),
            "{in_file}"
        );
    }

    #[test]
    fn matches_are_bounded() {
        let (_dir, root) = folder(&[
            ("a", &"x\n".repeat(1_000)),
            (
                "b",
                &format!("{}needle{}", "ä".repeat(5_000), "b".repeat(5_000)),
            ),
        ]);
        let found = search_files("x".into(), root.clone(), false, false, None).unwrap();
        assert_eq!(
            found.lines().filter(|line| line.ends_with(": x")).count(),
            MAX_MATCHES
        );
        assert!(found.contains("only the first 200 lines"), "{found}");
        let found = search_files("needle".into(), root.clone(), false, false, None).unwrap();
        assert!(found.contains("äneedleb") && found.len() < 1_000, "{found}");
    }

    #[test]
    fn files_are_written_and_not_lost() {
        let (_dir, root) = folder(&[("a", "old")]);
        let new = format!("{root}/x/y/z.txt");
        assert_eq!(
            write_file(new.clone(), "1\n2".into(), false).unwrap(),
            format!("created `{new}`: 2 lines, 3 bytes")
        );
        assert_eq!(fs::read_to_string(&new).unwrap(), "1\n2");
        let a = format!("{root}/a");
        let error = write_file(a.clone(), "new".into(), false).unwrap_err();
        assert!(error.message().contains("`overwrite`"), "{error}");
        assert_eq!(fs::read_to_string(&a).unwrap(), "old");
        assert!(
            write_file(a.clone(), "new".into(), true)
                .unwrap()
                .starts_with("replaced")
        );
        assert_eq!(fs::read_to_string(&a).unwrap(), "new");
        write_file(root.clone(), "x".into(), true).unwrap_err();
        write_file(format!("{a}/b"), "x".into(), true).unwrap_err();
        assert_eq!(
            fs::read_dir(&root).unwrap().count(),
            2,
            "nothing is left behind"
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_not_replaced_by_a_file() {
        let (_dir, root) = folder(&[("a", "old")]);
        let link = format!("{root}/link");
        std::os::unix::fs::symlink("a", &link).unwrap();
        let error = write_file(link.clone(), "new".into(), true).unwrap_err();
        assert!(error.message().contains("is a link"), "{error}");
        assert_eq!(fs::read_to_string(format!("{root}/a")).unwrap(), "old");
    }

    #[test]
    fn a_text_is_replaced_where_it_stands_once() {
        let (_dir, root) = folder(&[("a", "one\n  two\nthree\none\n")]);
        let a = format!("{root}/a");
        let edit = |old: &str, new: &str, all| edit_file(a.clone(), old.into(), new.into(), all);
        assert_eq!(
            edit("two", "2", false).unwrap(),
            format!("replaced 1 text in `{a}`, at line 2")
        );
        let error = edit("one", "1", false).unwrap_err();
        assert!(
            error.message().contains("2 times, at lines 1, 4"),
            "{error}"
        );
        assert_eq!(
            edit("one", "1", true).unwrap(),
            format!("replaced 2 texts in `{a}`, at lines 1, 4")
        );
        assert_eq!(fs::read_to_string(&a).unwrap(), "1\n  2\nthree\n1\n");
        let error = edit("2\n three", "x", false).unwrap_err();
        assert!(
            error.message().contains("white space, at line 2"),
            "{error}"
        );
        let error = edit("four", "x", false).unwrap_err();
        assert!(error.message().contains("does not have"), "{error}");
        edit("", "x", false).unwrap_err();
        edit("1", "1", true).unwrap_err();
    }
}
