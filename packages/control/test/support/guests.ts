/**
 * Guests that hold processors, on hosts and behind gateways that may die, as rows of a database whose clock the test has. For each it
 * is known how long it has held them, and how much of that the service may miss or charge beyond it.
 */
import { HANDLER_LISTEN_MS, newUuid } from '@releap/contract';
import { queryAll } from '@releap/database';
import { METER_SCALE } from '../../src/tenancy/billing/charge-meters.ts';
import { FUNCTION_SCALE } from '../../src/tenancy/billing/function-charges.ts';
import { closeStarts } from '../../src/functions/instances/listening.ts';
import { chargeRunning } from '../../src/functions/invocations/running.ts';
import { recordFinished } from '../../src/functions/invocations/store.ts';
import { RUNNERS_LOST } from '../../src/fleet/runners/queries.ts';
import { functionCost, newRunner, newSandbox, PRICES, setStatus, type MeteredSize } from './billing.ts';
import { finished, newFunction, type FunctionRow } from './functions.ts';
import type { VirtualClock } from './virtual-clock.ts';

/** A gateway reports calls that are older than the first one, each such time. */
const REPORTED_FROM = 10_000_000n;
const REPORT = 30_000_000n;
/** A host without heartbeats for so long is lost, and so are its sandboxes; a lease of a build is as long. */
const LOST_MS = 30_000;
const LOST = BigInt(LOST_MS) * 1_000n;
const BUILD = { vcpus: 2, memMib: 2_048 };

export interface Host {
  id: string;
  diedAt?: bigint;
}
export interface Gateway {
  id: string;
  reportedAt: bigint;
  isDead: boolean;
}

export interface Guest {
  kind: 'sandbox' | 'build' | 'trial' | 'start' | 'call';
  id: string;
  projectId: string;
  host: Host;
  /** Of a trial, a start and a call. */
  fn?: FunctionRow;
  /** Of a start. */
  gateway?: Gateway;
  /** The handler of a start listens: the instance is there, and its start is over. */
  listens?: boolean;
  call?: { gateway: Gateway; queuedAt: Date; instanceId: string };
  /** Since when it holds processors; undefined when it does not. */
  since: bigint | undefined;
  held: bigint;
  /** What may be charged too little and too much, in microseconds. */
  missing: bigint;
  excess: bigint;
}

export class Guests {
  readonly #clock: VirtualClock;
  readonly all: Guest[] = [];
  readonly hosts: Host[] = [];
  readonly gateways: Gateway[] = [];

  constructor(clock: VirtualClock) {
    this.#clock = clock;
  }

  get #database() {
    return this.#clock.database;
  }

  #sql(text: string, ...values: unknown[]) {
    return this.#database.pool.query(text, values);
  }

  async addHost(): Promise<void> {
    const { rows } = await this.#sql('select now() as now');
    this.hosts.push({ id: await newRunner(this.#database, rows[0].now) });
  }

  addGateway(): void {
    this.gateways.push({ id: newUuid(), reportedAt: this.#clock.passed, isDead: false });
  }

  #add(guest: Pick<Guest, 'kind' | 'id' | 'projectId' | 'host' | 'fn' | 'gateway' | 'call'>): void {
    this.all.push({ ...guest, since: this.#clock.passed, held: 0n, missing: 0n, excess: 0n });
  }

  #live(): Host {
    return this.hosts.findLast(({ diedAt }) => diedAt === undefined) as Host;
  }

  async startSandbox(projectId: string, size: MeteredSize): Promise<void> {
    const host = this.#live();
    const id = await newSandbox(this.#database, projectId, { ...size, runnerId: host.id });
    this.#add({ kind: 'sandbox', id, projectId, host });
  }

  async startBuild(projectId: string): Promise<void> {
    const [id, host] = [newUuid(), this.#live()];
    await this.#sql(
      `insert into jobs (id, project_id, kind, status, payload) values ($1, $2, 'build', 'queued', '{"root": {"type": "dockerfile"}}')`,
      id,
      projectId,
    );
    await this.#sql(
      `update jobs set status = 'running', attempts = 1, runner_id = $2, lease_until = now() + interval '30 seconds' where id = $1`,
      id,
      host.id,
    );
    this.#add({ kind: 'build', id, projectId, host });
  }

  async startTrial(fn: FunctionRow): Promise<void> {
    const host = this.#live();
    const id = await this.#instance(fn, 'probe', host);
    this.#add({ kind: 'trial', id, projectId: fn.projectId, host, fn });
  }

  /** An instance whose handler computes before it listens. */
  async startInstance(fn: FunctionRow): Promise<void> {
    const [host, gateway] = [this.#live(), this.#gateway()];
    const id = await this.#instance(fn, 'serve', host, gateway);
    this.#add({ kind: 'start', id, projectId: fn.projectId, host, fn, gateway });
  }

  #gateway(): Gateway {
    return this.gateways.findLast(({ isDead }) => !isDead) as Gateway;
  }

  /** Its start ends: what it computes from now on are calls. */
  async listen(guest: Guest): Promise<void> {
    if (guest.gateway === undefined || guest.since === undefined) return;
    this.#holdNoMore(guest);
    guest.listens = true;
    await this.#listens(guest.id, guest.gateway);
  }

  #listens(id: string, gateway: Gateway): Promise<void> {
    return closeStarts(this.#database.pool, [{ id, gatewayId: gateway.id, forMs: 0 }]);
  }

  async startCall(fn: FunctionRow): Promise<void> {
    const host = this.#live();
    const gateway = this.#gateway();
    const { rows } = await this.#sql(`select date_trunc('milliseconds', now()) as now`);
    const instanceId = await this.#instance(fn, 'serve', host, gateway);
    await this.#listens(instanceId, gateway);
    const call = { gateway, queuedAt: rows[0].now as Date, instanceId };
    this.#add({ kind: 'call', id: newUuid(), projectId: fn.projectId, host, fn, call });
  }

  async #instance(
    fn: FunctionRow,
    purpose: 'probe' | 'serve',
    host: Host,
    gateway?: Gateway,
  ): Promise<string> {
    const { vcpus, memMib, projectId } = fn;
    const size = { vcpus, memMib, millicores: vcpus * 1_000, runnerId: host.id };
    const id = await newSandbox(this.#database, projectId, { ...size, status: 'pending' });
    await this.#sql(
      `update sandboxes set owner_kind = 'service', owner_service = 'functions' where id = $1`,
      id,
    );
    await this.#sql(
      `insert into function_instances (sandbox_id, function_id, version_id, project_id, purpose, gateway_id) values ($1, $2, $3, $4, $5, $6)`,
      id,
      fn.id,
      fn.versionId,
      projectId,
      purpose,
      gateway?.id ?? null,
    );
    await setStatus(this.#database, id, 'running');
    return id;
  }

  newFunction(projectId: string): Promise<FunctionRow> {
    return newFunction(this.#database, projectId, { vcpus: 2, memMib: 777 });
  }

  #holdNoMore(guest: Guest): void {
    if (guest.since === undefined) return;
    guest.held += this.#clock.passed - guest.since;
    guest.since = undefined;
  }

  /** It ends by itself, is deleted, or its client has cut the connection: what holds processors ends now. */
  async end(guest: Guest, how: 'succeeded' | 'failed' = 'succeeded'): Promise<void> {
    if (guest.listens === true) {
      guest.listens = false;
      await this.#delete(guest.id);
    }
    if (guest.since === undefined) return;
    this.#holdNoMore(guest);
    const { kind, id, call, fn } = guest;
    if (kind === 'build')
      await this.#sql(`update jobs set status = 'failed', lease_until = null where id = $1`, id);
    else if (call === undefined || fn === undefined) await this.#delete(id);
    else {
      const end = finished(fn, {
        id,
        queuedAt: call.queuedAt,
        status: how,
        durationMs: Number(guest.held) / 1_000,
      });
      await recordFinished(this.#database.pool, PRICES, [end]);
      await this.#delete(call.instanceId);
    }
  }

  async #delete(sandboxId: string): Promise<void> {
    await setStatus(this.#database, sandboxId, 'deleting');
    await this.#sql(
      `update sandboxes set status = 'deleted', deleted_at = now(), held = false where id = $1`,
      sandboxId,
    );
  }

  /** Its guests end with it, and no report says so. */
  kill(host: Host): void {
    host.diedAt = this.#clock.passed;
    for (const guest of this.all) {
      // Its gateway sees that the connection of a call breaks.
      if (guest.host !== host || guest.since === undefined || guest.kind === 'call') continue;
      this.#holdNoMore(guest);
      // Since its last heartbeat.
      guest.missing += LOST;
      if (guest.kind === 'build') guest.excess += LOST;
    }
  }

  /** Its instances end with their leases. */
  async killGateway(gateway: Gateway): Promise<void> {
    gateway.isDead = true;
    for (const guest of this.all) {
      if (guest.gateway === gateway) await this.end(guest);
      if (guest.call?.gateway !== gateway || guest.since === undefined) continue;
      this.#holdNoMore(guest);
      guest.missing += REPORTED_FROM + REPORT;
      await this.#delete(guest.call.instanceId);
    }
  }

  /** A clock was set: a meter that was uncharged for longer than the step is not corrected. */
  allow(micros: bigint): void {
    for (const guest of this.all) {
      if (guest.kind === 'call') continue;
      guest.missing += micros;
      guest.excess += micros;
    }
  }

  /** What hosts and gateways that live say now, and what follows from the silence of others. */
  async report(): Promise<void> {
    const { passed } = this.#clock;
    const live = this.hosts.filter(({ diedAt }) => diedAt === undefined).map(({ id }) => id);
    await this.#sql('update runners set last_seen_at = now() where id = any($1)', live);
    await this.#sql(
      `update jobs set lease_until = now() + interval '30 seconds' where status = 'running' and runner_id = any($1)`,
      live,
    );
    const lost = await queryAll(this.#database.pool, RUNNERS_LOST, [LOST_MS]);
    const ids = lost.map(({ id }) => id);
    await this.#sql(
      `update sandboxes set status = 'lost' where runner_id = any($1) and status = 'running'`,
      ids,
    );
    await this.#sql(
      `update sandboxes set status = 'deleted', deleted_at = now(), held = false where runner_id = any($1) and status = 'lost'`,
      ids,
    );
    await this.#sql(`update jobs set status = 'failed' where status = 'running' and lease_until < now()`);
    for (const gateway of this.gateways) {
      if (gateway.isDead || passed - gateway.reportedAt < REPORT) continue;
      gateway.reportedAt = passed;
      await this.#reportCalls(gateway);
    }
  }

  async #reportCalls(gateway: Gateway): Promise<void> {
    const rows = this.all.flatMap(({ id, fn, call, since }) => {
      if (call?.gateway !== gateway || since === undefined || fn === undefined) return [];
      const elapsed = this.#clock.passed - since;
      if (elapsed < REPORTED_FROM) return [];
      return [
        {
          id,
          queuedAt: call.queuedAt,
          functionId: fn.id,
          versionId: fn.versionId,
          version: 1,
          source: 'invoke' as const,
          attempt: null,
          startedAt: call.queuedAt,
          elapsedMs: Number(elapsed) / 1_000,
          cold: false,
        },
      ];
    });
    await chargeRunning(this.#database.pool, PRICES, rows);
  }

  /** Least and most nano-credits for what the guests of these projects have held. */
  cost(projects: readonly string[], size: MeteredSize): { least: bigint; most: bigint } {
    let [least, most] = [0n, 0n];
    for (const guest of this.all) {
      if (!projects.includes(guest.projectId)) continue;
      const { held, missing, excess } = guest;
      // A meter keeps less than a nano-credit.
      if (held > missing) least += nanos(guest, charged(guest, held - missing), size) - 1n;
      most += nanos(guest, charged(guest, held + excess), size) + 1n;
    }
    return { least, most };
  }
}

/** A start is free at first, and charged no longer than a handler may take. */
function charged({ kind }: Guest, micros: bigint): bigint {
  if (kind !== 'start') return micros;
  const most = BigInt(HANDLER_LISTEN_MS) * 1_000n;
  const free = BigInt(PRICES.startFreeMs) * 1_000n;
  const counted = micros < most ? micros : most;
  return counted > free ? counted - free : 0n;
}

/** What a guest costs that holds its processors for so long, computed apart from the statements. */
function nanos({ kind, fn }: Guest, micros: bigint, size: MeteredSize): bigint {
  const { buildCpuSecond, buildMemGibSecond } = PRICES;
  const buildPrices = { functionCpuSecond: buildCpuSecond, functionMemGibSecond: buildMemGibSecond };
  if (kind === 'build') return functionCost(BUILD, micros, buildPrices) / FUNCTION_SCALE;
  if (fn !== undefined) return functionCost(fn, micros, PRICES) / FUNCTION_SCALE;
  const rate =
    BigInt(size.millicores) * 1024n * PRICES.cpuSecond + BigInt(size.memMib) * 1000n * PRICES.memGibSecond;
  return (micros * rate * 100n) / METER_SCALE;
}
