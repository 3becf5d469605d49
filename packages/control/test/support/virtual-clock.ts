/** A database whose time passes only when a test says so, to the microsecond. */
import { openDatabase, type Database } from '@releap/database';
import { freshDatabase, quiet } from '@releap/testing/postgres';

/**
 * `now()` and `clock_timestamp()` of statements and triggers. Defaults of columns were bound to those of PostgreSQL when their tables
 * were made, and still are.
 */
const INSTALL = `
create schema virtual;
create table virtual.clock as select date_trunc('day', now()) + interval '12 hours' as at;
create function virtual.now() returns timestamptz language sql stable as 'select at from virtual.clock';
create function virtual.clock_timestamp() returns timestamptz language sql volatile as 'select at from virtual.clock';
do $$ begin execute format('alter database %I set search_path = virtual, pg_catalog, public', current_database()); end $$;
`;

export class VirtualClock implements AsyncDisposable {
  readonly database: Database;
  /** Microseconds that have passed, whatever the clock of the database was set to. */
  #passed = 0n;

  private constructor(database: Database) {
    this.database = database;
  }

  static async open(): Promise<VirtualClock> {
    const url = await freshDatabase();
    {
      await using database = openDatabase({ url, log: quiet, connections: 1 });
      await database.pool.query(INSTALL);
    }
    return new VirtualClock(openDatabase({ url, log: quiet }));
  }

  /** Of a process: no clock that is set changes it. */
  get passed(): bigint {
    return this.#passed;
  }

  async pass(micros: number): Promise<void> {
    this.#passed += BigInt(micros);
    await this.set(micros);
  }

  /** Sets the database's clock by so much; no time passes. */
  async set(micros: number): Promise<void> {
    await this.database.pool.query(`update virtual.clock set at = at + $1 * interval '1 microsecond'`, [
      micros,
    ]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.database.close();
  }
}
