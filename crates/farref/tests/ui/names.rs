//! A method that would never be called cannot be remote.

struct Table;

#[farref::remote]
impl Table {
    pub fn backward(&self) {}
    pub fn cast(&self) {}
    pub fn clone_from(&mut self) {}
    pub fn clone_into(&self) {}
    pub fn confirmed(&self) {}
    pub fn id(&self) {}
    pub fn into(&self) {}
    pub fn is_owner(&self) {}
    pub fn local(&self) {}
    pub fn local_mut(&mut self) {}
    pub fn owner(&self) {}
    pub fn to_here(&self) {}
    pub fn to_owned(&self) {}
    pub fn try_into(&self) {}
}

/// Without `self` there is nothing in the way.
struct Other;

#[farref::remote]
impl Other {
    pub fn cast() {}
}

fn main() {}
