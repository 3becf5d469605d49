/** How much a database grows, and what it writes, while it stores the use of sandboxes. */
import { newUuid } from '@releap/contract';
import type { UsagePiece } from '@releap/contract/runner';
import type { Database } from '@releap/database';
import { storeUsage } from '../../packages/control/src/compute/usage/store-usage.ts';

const HOSTS = 5;
const MINUTES = 60;
/** Later hours use the space that earlier ones have left. */
const HOURS = 2;
const HOUR_MS = 3_600_000;

export interface Growth {
  /** In an hour: rows of each kind, and their bytes with indexes. */
  minuteRows: number;
  minuteBytes: number;
  hourBytes: number;
  walBytes: number;
}

const [MINUTES_TABLE, HOURS_TABLE] = ['usage_batches', 'usage_hourly'];

/** Puts the sandboxes on hosts, evenly. @returns sandboxes by host */
export async function spreadOverHosts(pool: Database['pool']): Promise<Map<string, string[]>> {
  const { rows } = await pool.query<{ id: string }>('select id from sandboxes');
  const share = Math.ceil(rows.length / HOSTS);
  const hosts = new Map<string, string[]>();
  for (let at = 0; at < rows.length; at += share) {
    const [host, ids] = [newUuid(), rows.slice(at, at + share).map(({ id }) => id)];
    await pool.query(
      `insert into runners (id, region, status, data_url, facts, last_seen_at) values ($1, 'local', 'online', '', '{}', now() + interval '1 year')`,
      [host],
    );
    await pool.query('update sandboxes set runner_id = $1 where id = any($2)', [host, ids]);
    hosts.set(host, ids);
  }
  return hosts;
}

/** Stores the last whole hours of all of them, a message a host and minute. @returns an hour's share */
export async function storeHours(
  database: Database,
  hosts: ReadonlyMap<string, readonly string[]>,
): Promise<Growth> {
  const { pool } = database;
  const wal = async (): Promise<number> =>
    Number((await pool.query<{ at: string }>(`select pg_current_wal_lsn() - '0/0' as at`)).rows[0]?.at);
  /** Of all partitions. */
  const size = async (table: string): Promise<{ rows: number; bytes: number }> => {
    const { rows } = await pool.query<{ rows: string; bytes: string }>(
      `select (select count(*) from ${table}) as rows, sum(pg_total_relation_size(relid)) as bytes from pg_partition_tree('${table}')`,
    );
    return { rows: Number(rows[0]?.rows), bytes: Number(rows[0]?.bytes) };
  };
  await pool.query('checkpoint');
  const sizes = async () => [await size(MINUTES_TABLE), await size(HOURS_TABLE)] as const;
  const [[minutesBefore, hoursBefore], walBefore] = [await sizes(), await wal()];
  const first = Math.floor(Date.now() / HOUR_MS) * MINUTES - HOURS * MINUTES;
  const random = randomNumbers(1);
  for (let minute = 0; minute < HOURS * MINUTES; minute += 1) {
    for (const [host, ids] of hosts)
      await storeUsage(
        database,
        host,
        { seq: minute + 1, pieces: ids.map((id, at) => piece(id, first + minute, at, random)) },
        1,
      );
    // As autovacuum does.
    if (minute % MINUTES === MINUTES - 1) await pool.query(`vacuum ${HOURS_TABLE}`);
  }
  const walAfter = await wal();
  const [ofMinutes, ofHours] = await sizes();
  return {
    minuteRows: (ofMinutes.rows - minutesBefore.rows) / HOURS,
    minuteBytes: (ofMinutes.bytes - minutesBefore.bytes) / HOURS,
    hourBytes: (ofHours.bytes - hoursBefore.bytes) / HOURS,
    walBytes: (walAfter - walBefore) / HOURS,
  };
}

/** Of ten sandboxes, three work and seven wait for something. */
function piece(id: string, minute: number, at: number, random: () => number): UsagePiece {
  const upTo = (most: number): number => Math.floor(random() * most);
  const works = at % 10 < 3;
  const memoryKib = 150_000 + (at % 977) * 1_000 + (works ? upTo(50_000) : upTo(64));
  return {
    vm_id: id,
    minute,
    duration_ms: 60_000,
    cpu_usec: works ? upTo(120_000_000) : 150_000 + upTo(100_000),
    memory_kib_ms: memoryKib * 60_000,
    disk_peak_bytes: 4_096 * ((at % 9_973) + (works ? upTo(5_000) : 0)),
    disk_read_bytes: works ? 4_096 * upTo(2_000) : 0,
    disk_write_bytes: 4_096 * upTo(works ? 20_000 : 20),
    net_rx_bytes: upTo(works ? 5_000_000 : 500),
    net_tx_bytes: upTo(works ? 2_000_000 : 500),
  };
}

/** The same ones each time (mulberry32). */
function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
