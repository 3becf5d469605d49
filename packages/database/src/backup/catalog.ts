/** What a backup of the database consists of, read from the catalog: a new table needs no change here. */
import type { Client } from 'pg';

/** Its rows are those of its partitions too. */
export interface DumpedTable {
  name: string;
  columns: readonly string[];
  /** Names of its partitions. */
  partitions: readonly string[];
}

export interface DumpedSequence {
  name: string;
  value: string;
}

/** Made by migrations alone. */
const MIGRATIONS_TABLE = 'schema_migrations';

/** Without tables of extensions. */
const TABLES = `
  select c.relname as name,
         (select json_agg(a.attname order by a.attnum) from pg_attribute a
           where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '') as columns,
         coalesce((select json_agg(p.relname order by p.relname) from pg_inherits i join pg_class p on p.oid = i.inhrelid
           where i.inhparent = c.oid), '[]') as partitions
    from pg_class c
   where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
     and c.relname <> '${MIGRATIONS_TABLE}'
     and not exists (select 1 from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')
   order by c.relname`;

export async function readTables(client: Client): Promise<DumpedTable[]> {
  return (await client.query<DumpedTable>(TABLES)).rows;
}

/** Those that have been used. */
export async function readSequences(client: Client): Promise<DumpedSequence[]> {
  const { rows } = await client.query<DumpedSequence>(
    `select sequencename as name, last_value::text as value from pg_sequences
      where schemaname = current_schema() and last_value is not null order by sequencename`,
  );
  return rows;
}

export interface ForeignKey {
  table: string;
  name: string;
  definition: string;
}

/** Names are quoted. */
export async function readForeignKeys(client: Client): Promise<ForeignKey[]> {
  const { rows } = await client.query<ForeignKey>(
    `select conrelid::regclass::text as table, quote_ident(conname) as name, pg_get_constraintdef(oid) as definition
       from pg_constraint where contype = 'f' and conparentid = 0 and connamespace = current_schema()::regnamespace
      order by 1, 2`,
  );
  return rows;
}

/** Sessions that last as long as the tables are large, and whose text of values does not depend on settings of the server. */
export const SESSION = `set statement_timeout = 0; set idle_in_transaction_session_timeout = 0; set lock_timeout = '60s';
  set client_encoding = 'UTF8'; set datestyle = 'ISO, MDY'; set intervalstyle = 'postgres'; set extra_float_digits = 1;
  set bytea_output = 'hex'; set timezone = 'UTC'; set row_security = off`;
