//! Expressions over contributions, each kept once, so that equal expressions have equal numbers.

use std::collections::HashMap;

/// The number of an expression.
pub(super) type Id = u32;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Node {
    /// What a rank contributes.
    Leaf(usize),
    /// Two expressions combined, the left operand first.
    Op(Id, Id),
    /// The same after average and postscale.
    Finished(Id),
}

/// All expressions of one run.
pub(super) struct Expressions {
    words: usize,
    ids: HashMap<Node, Id>,
    nodes: Vec<Node>,
    /// The contributions in each expression, a bit a rank.
    members: Vec<Box<[u64]>>,
}

impl Expressions {
    pub(super) fn new(size: usize) -> Self {
        Self { words: size.div_ceil(64), ids: HashMap::new(), nodes: Vec::new(), members: Vec::new() }
    }

    fn insert(&mut self, node: Node, members: impl FnOnce(&Self) -> Result<Box<[u64]>, String>) -> Result<Id, String> {
        if let Some(&id) = self.ids.get(&node) {
            return Ok(id);
        }
        let members = members(self)?;
        let id = self.nodes.len() as Id;
        self.ids.insert(node, id);
        self.nodes.push(node);
        self.members.push(members);
        Ok(id)
    }

    pub(super) fn leaf(&mut self, rank: usize) -> Id {
        let set = |table: &Self| {
            let mut members = vec![0; table.words].into_boxed_slice();
            members[rank / 64] |= 1 << (rank % 64);
            Ok(members)
        };
        self.insert(Node::Leaf(rank), set).unwrap_or_default()
    }

    pub(super) fn combine(&mut self, left: Id, right: Id) -> Result<Id, String> {
        self.insert(Node::Op(left, right), |table| {
            if table.is_finished(left) || table.is_finished(right) {
                return Err("a finished result is reduced again".into());
            }
            let (left, right) = (&table.members[left as usize], &table.members[right as usize]);
            if let Some(word) = (0..table.words).find(|&word| left[word] & right[word] != 0) {
                let rank = word * 64 + (left[word] & right[word]).trailing_zeros() as usize;
                return Err(format!("the contribution of rank {rank} is counted twice"));
            }
            Ok(left.iter().zip(right).map(|(left, right)| left | right).collect())
        })
    }

    pub(super) fn finish(&mut self, id: Id) -> Result<Id, String> {
        if self.is_finished(id) {
            return Err("a result is finished twice".into());
        }
        self.insert(Node::Finished(id), |table| Ok(table.members[id as usize].clone()))
    }

    pub(super) fn is_finished(&self, id: Id) -> bool {
        matches!(self.nodes[id as usize], Node::Finished(_))
    }

    /// The rank whose contribution is missing, if any of `size` is.
    pub(super) fn missing(&self, id: Id, size: usize) -> Option<usize> {
        let members = &self.members[id as usize];
        (0..size).find(|rank| members[rank / 64] & (1 << (rank % 64)) == 0)
    }

    /// `finish(((x0 op x1) op x2) ...)`.
    pub(super) fn in_rank_order(&mut self, size: usize) -> Result<Id, String> {
        let mut sum = self.leaf(0);
        for rank in 1..size {
            let leaf = self.leaf(rank);
            sum = self.combine(sum, leaf)?;
        }
        self.finish(sum)
    }

    /// The expression in words, shortened where it is long.
    pub(super) fn describe(&self, id: Id) -> String {
        fn write(table: &Expressions, id: Id, out: &mut String) {
            if out.len() > 200 {
                return;
            }
            match table.nodes[id as usize] {
                Node::Leaf(rank) => out.push_str(&format!("x{rank}")),
                Node::Op(left, right) => {
                    out.push('(');
                    write(table, left, out);
                    out.push(' ');
                    write(table, right, out);
                    out.push(')');
                }
                Node::Finished(inner) => {
                    out.push_str("finish ");
                    write(table, inner, out);
                }
            }
        }
        let mut out = String::new();
        write(self, id, &mut out);
        if out.len() > 200 {
            out.push_str(" ...");
        }
        out
    }
}
