//! Which calls of a turn may overlap: a pure function over what they can touch.
//!
//! Every call runs in an instance of its own, so two calls can only meet outside their sandboxes. Calls
//! conflict when one may write what the other may touch; those keep call order among themselves, and
//! everything else overlaps.

use crate::capability::Reach;

/// What scheduling has to know of a call.
#[derive(Debug, Clone, Copy)]
pub struct Footprint<'a> {
    /// `None`: it runs outside the sandbox, and only `parallel_safe` is known of it.
    pub reach: Option<&'a Reach>,
    pub parallel_safe: bool,
}

/// For each call the earlier calls that have to end before it may start, in call order.
///
/// One call that is not `parallel_safe` (or `parallel = false`) puts the whole batch in call order, one at
/// a time. A call that will not run at all (`None`) touches nothing.
pub fn predecessors(calls: &[Option<Footprint<'_>>], parallel: bool) -> Vec<Vec<usize>> {
    let serial = !parallel || calls.iter().flatten().any(|call| !call.parallel_safe);
    (0..calls.len())
        .map(|i| {
            if serial {
                return (0..i).collect();
            }
            let Some(reach) = calls[i].and_then(|call| call.reach) else {
                return Vec::new();
            };
            (0..i)
                .filter(|j| {
                    calls[*j]
                        .and_then(|earlier| earlier.reach)
                        .is_some_and(|earlier| reach.conflicts(earlier))
                })
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::{Access, Capability, FolderGrant, Grants, Request};

    fn folder(path: &str, access: Access) -> Reach {
        let requests = [Request {
            capability: Capability::Folder {
                path: "*".into(),
                access: Access::Write,
            },
            reason: String::new(),
        }];
        let folders = vec![FolderGrant {
            host_path: path.into(),
            guest_path: "/f".into(),
            access,
        }];
        Reach::new(
            &requests,
            &Grants {
                folders,
                ..Grants::default()
            },
        )
    }

    fn sandboxed(reach: &Reach) -> Option<Footprint<'_>> {
        Some(Footprint {
            reach: Some(reach),
            parallel_safe: true,
        })
    }

    #[test]
    fn only_conflicting_calls_keep_their_order() {
        let nothing = Reach::default();
        let read_a = folder("/w/a", Access::Read);
        let write_a = folder("/w/a", Access::Write);
        let write_inside_a = folder("/w/a/deep", Access::Write);
        let write_b = folder("/w/b", Access::Write);
        let write_named_alike = folder("/w/ab", Access::Write);
        let calls: Vec<_> = [
            &write_a,
            &nothing,
            &read_a,
            &write_b,
            &write_inside_a,
            &write_named_alike,
            &read_a,
        ]
        .into_iter()
        .map(sandboxed)
        .collect();
        assert_eq!(
            predecessors(&calls, true),
            [
                vec![],
                vec![],
                vec![0],
                vec![],
                vec![0, 2],
                vec![],
                vec![0, 4]
            ]
        );
    }

    #[test]
    fn two_readers_overlap() {
        let read = folder("/w/a", Access::Read);
        assert_eq!(
            predecessors(&[sandboxed(&read), sandboxed(&read)], true),
            [vec![], Vec::<usize>::new()]
        );
    }

    #[test]
    fn one_serial_tool_or_the_setting_orders_the_whole_batch() {
        let nothing = Reach::default();
        let serial = Some(Footprint {
            reach: Some(&nothing),
            parallel_safe: false,
        });
        let ordered = vec![vec![], vec![0], vec![0, 1]];
        assert_eq!(
            predecessors(&[sandboxed(&nothing), serial, None], true),
            ordered
        );
        assert_eq!(
            predecessors(&[sandboxed(&nothing), sandboxed(&nothing), None], false),
            ordered
        );
    }

    #[test]
    fn native_tools_overlap_unless_they_say_no() {
        let native = Some(Footprint {
            reach: None,
            parallel_safe: true,
        });
        assert_eq!(
            predecessors(&[native, native], true),
            [vec![], Vec::<usize>::new()]
        );
    }
}
