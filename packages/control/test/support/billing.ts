/** Organizations, hosts, sandboxes and meters as rows of the database, for tests below the API. */
import { randomBytes } from 'node:crypto';
import { newUuid, type SandboxStatus } from '@releap/contract';
import type { Database, StoredSpec } from '@releap/database';
import { METER_SCALE } from '../../src/tenancy/billing/charge-meters.ts';
import { price, type Prices } from '../../src/tenancy/billing/prices.ts';

export const REGION = 'here';

/** Prices of which none divides another. */
export const PRICES: Prices = {
  cpuSecond: price('0.000014'),
  memGibSecond: price('0.0000045'),
  burstCpuSecond: price('0.000021'),
  gpuSecond: price('0.0006'),
  functionCpuSecond: price('0.000017'),
  functionMemGibSecond: price('0.000006000001'),
  buildCpuSecond: price('0.000011'),
  buildMemGibSecond: price('0.0000031'),
  startFreeMs: 10_000,
  spotDiscountPercent: 60,
};

export interface MeteredSize {
  millicores: number;
  memMib: number;
  gpus: number;
  spot: boolean;
}

/** Cost of a microsecond of a sandbox in units of `METER_SCALE`, computed apart from the statements. */
function meterRate(size: MeteredSize, prices: Prices): bigint {
  const full =
    BigInt(size.millicores) * 1024n * prices.cpuSecond +
    BigInt(size.memMib) * 1000n * prices.memGibSecond +
    BigInt(size.gpus) * 1_024_000n * prices.gpuSecond;
  return full * BigInt(size.spot ? 100 - prices.spotDiscountPercent : 100);
}

/** Cost of an invocation in units of `FUNCTION_SCALE`, computed apart from the statements. @param micros duration in whole microseconds */
export function functionCost(
  size: { vcpus: number; memMib: number },
  micros: bigint,
  prices: Pick<Prices, 'functionCpuSecond' | 'functionMemGibSecond'>,
): bigint {
  const rate =
    BigInt(size.vcpus) * 1024n * prices.functionCpuSecond + BigInt(size.memMib) * prices.functionMemGibSecond;
  return micros * rate;
}

export async function newOrg(database: Database): Promise<{ orgId: string; projectId: string }> {
  const [orgId, projectId] = [newUuid(), newUuid()];
  await database.pool.query(`insert into regions (id, name) values ($1, $1) on conflict do nothing`, [
    REGION,
  ]);
  await database.pool.query(`insert into organizations (id, name) values ($1, 'one')`, [orgId]);
  await database.pool.query(`insert into projects (id, org_id, name) values ($1, $2, 'one')`, [
    projectId,
    orgId,
  ]);
  return { orgId, projectId };
}

export async function newRunner(database: Database, lastSeen = new Date()): Promise<string> {
  const id = newUuid();
  await database.pool.query(
    `insert into runners (id, region, status, data_url, facts, last_seen_at) values ($1, $2, 'online', '', '{}', $3)`,
    [id, REGION, lastSeen],
  );
  return id;
}

export interface SandboxOptions extends Partial<MeteredSize> {
  id?: string;
  status?: SandboxStatus;
  runnerId?: string | null;
  mode?: 'burstable' | 'dedicated';
  vcpus?: number;
}

/** As JSON, for a row of `sandboxes` or `snapshots`. */
export function specJson(fields: Partial<StoredSpec> = {}): string {
  const spec: StoredSpec = {
    version: 1,
    name: 'one',
    vcpus: 2,
    ports: [],
    egress_policy: null,
    image_ref: 'busybox',
    root: { type: 'builtin', name: 'busybox' },
    origin: null,
  };
  return JSON.stringify({ ...spec, ...fields });
}

export async function newSandbox(
  database: Database,
  projectId: string,
  options: SandboxOptions = {},
): Promise<string> {
  const id = options.id ?? newUuid();
  await database.pool.query(
    `insert into sandboxes (id, project_id, region, status, desired, job_id, mode, cpu, spec, mem_mib, scratch_mib,
       gpu_host, spot, cpu_arch, access_token_hash, runner_id, held)
     values ($1, $2, $3, $4, 'running', $5, $6, $7, $8, $9, 512, $10, $11, 'amd64', $12, $13, $13::uuid is not null)`,
    [
      id,
      projectId,
      REGION,
      options.status ?? 'running',
      newUuid(),
      options.mode ?? 'burstable',
      (options.millicores ?? 125) / 1000,
      specJson({ vcpus: options.vcpus ?? 2 }),
      options.memMib ?? 1024,
      options.gpus ?? 0,
      options.spot ?? false,
      randomBytes(32),
      options.runnerId ?? null,
    ],
  );
  return id;
}

export async function setStatus(database: Database, id: string, status: SandboxStatus): Promise<void> {
  await database.pool.query('update sandboxes set status = $2 where id = $1', [id, status]);
}

/** What a sandbox of this size costs over a time: the model that the service has to meet to the last nano-credit. */
export function exactCost(size: MeteredSize, micros: bigint, prices: Prices = PRICES): bigint {
  return (micros * meterRate(size, prices)) / METER_SCALE;
}

/** Every account beside the sum of its ledger, read in one statement. */
export async function accounts(
  database: Database,
): Promise<{ org_id: string; balance: bigint; sum: bigint }[]> {
  const { rows } = await database.pool.query<{ org_id: string; balance: string; sum: string }>(
    `select coalesce(a.org_id, l.org_id) as org_id, coalesce(a.balance, 0) as balance, coalesce(l.sum, 0) as sum
       from credit_accounts a full join (select org_id, sum(amount) as sum from ledger_entries group by org_id) l using (org_id)`,
  );
  return rows.map((row) => ({ org_id: row.org_id, balance: BigInt(row.balance), sum: BigInt(row.sum) }));
}

/** Nano-credits that were charged for a sandbox, as a number from 0. */
export async function charged(database: Database, sandboxId: string, kind = 'usage'): Promise<bigint> {
  const { rows } = await database.pool.query<{ sum: string | null }>(
    'select -sum(amount) as sum from ledger_entries where sandbox_id = $1 and kind = $2',
    [sandboxId, kind],
  );
  return BigInt(rows[0]?.sum ?? 0);
}
