//! Who may not call a method may not call it from afar, either.

mod tables {
    pub struct Table;

    #[farref::remote]
    impl Table {
        pub fn get(&self) -> u8 {
            0
        }

        #[remote]
        fn wipe(&mut self) {}

        pub(super) fn rename(&mut self) {}
    }

    pub async fn inside(table: &farref::RRef<Table>) -> farref::Result<()> {
        table.get().await?;
        table.rename().await?;
        table.wipe().await
    }
}

async fn outside(table: &farref::RRef<tables::Table>) -> farref::Result<()> {
    use tables::{TableRRef as _, TableRRefSuper as _};
    table.get().await?;
    table.rename().await?;
    table.wipe().await?;
    tables::Table::wipe_on(table).await
}

fn main() {
    let _ = (tables::inside, outside);
}
