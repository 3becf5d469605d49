import { formatCidr, type NameServer, type NetdPin } from '@releap/contract/netd';
import type { Logger } from 'pino';
import { type AddressPlan, slotPlan } from './address-plan.ts';
import { ProcessError, run } from '../process/index.ts';
import { DENIAL_SET, type FirewallDenial, parseDenials, renderDenialsRemoval } from './denial-rules.ts';
import type { FlowLimits } from './flow-limits.ts';
import {
  MAX_PINS_PER_SANDBOX,
  type NetdAccess,
  renderHostTable,
  renderNetd,
  renderPins,
  renderPolicy,
  renderPolicyRemoval,
  type SlotPolicy,
} from './host-rules.ts';
import { RulesetWatch } from './ruleset-watch.ts';
import { permitPrivate } from './slot.ts';

export interface HostFirewallOptions {
  plan: AddressPlan;
  netd: NetdAccess;
  flows: FlowLimits;
  /** Policies of the slots that are in use already (a restarted runner). */
  policies: ReadonlyMap<number, SlotPolicy>;
  /** How often to look whether the table is still there, in milliseconds. */
  watchMs: number;
  /** Pinned addresses are not open any more: another program has removed the table. */
  onPinsLost?: () => void;
  /** Gets what the table of an earlier runner has denied, before that is forgotten. */
  onReload?: (denied: readonly FirewallDenial[]) => Promise<void>;
  log: Logger;
}

interface Change {
  script: string;
  /** Slot that addresses are pinned for; absent for everything else. */
  pinsOf?: number;
  resolve: () => void;
  reject: (error: unknown) => void;
}

/** Pins that wait, of all and of one sandbox; beyond it a question is refused: answers are cheap to make up. */
const MAX_PINS_WAITING = 2048;
const MAX_PINS_WAITING_PER_SLOT = 32;
/** How many changes one `nft` process carries. */
const MAX_BATCH = 256;
/** Between two runs for pins: guests decide how many of them there are, and each run costs the runner some time. */
const PINS_INTERVAL_MS = 25;
/** Sandboxes are often deleted in groups. */
const CLEANING_DELAY_MS = 1_000;

/**
 * Our table in the host's firewall. Changes that arrive while `nft` runs share the next run, because every run
 * costs a child process; a change is in force when its promise resolves.
 */
export class HostFirewall {
  readonly #plan: AddressPlan;
  #netd: NetdAccess;
  readonly #flows: FlowLimits;
  readonly #log: Logger;
  readonly #onPinsLost: () => void;
  readonly #slots: Map<number, SlotPolicy>;
  /** Policies, and the whole table: never behind what a guest can cause. */
  readonly #waiting: Change[] = [];
  #waitingPins: Change[] = [];
  #pumping = false;
  /** When pins may be written next, by `performance.now()`. */
  #pinsFrom = 0;
  #pinsTimer: NodeJS.Timeout | undefined;
  #watch: RulesetWatch | undefined;
  #restores = 0;
  /** Released slots of which the sets still have what was denied to the former holder. */
  readonly #stale = new Set<number>();
  #cleaning: NodeJS.Timeout | undefined;

  private constructor(options: HostFirewallOptions) {
    this.#plan = options.plan;
    this.#netd = options.netd;
    this.#onPinsLost = options.onPinsLost ?? (() => undefined);
    this.#flows = options.flows;
    this.#log = options.log;
    this.#slots = new Map(options.policies);
  }

  /** Loads the table again, in one transaction. Addresses that DNS has pinned for remaining policies stay pinned. */
  static async open(options: HostFirewallOptions): Promise<HostFirewall> {
    const firewall = new HostFirewall(options);
    await options.onReload?.(await firewall.#listDenials().catch(ignoreAbsent));
    const pins = await readPins(options.plan.table);
    await nft(firewall.#render(pins ?? new Map()));
    if (pins === undefined) await firewall.#dropUnaccepted();
    firewall.#watch = new RulesetWatch(options.watchMs, () => firewall.#restoreIfGone());
    return firewall;
  }

  /** How often another program had removed the table. */
  get restores(): number {
    return this.#restores;
  }

  #render(pins: ReadonlyMap<number, readonly NetdPin[]>): string {
    const runnerUid = process.getuid?.() ?? 0;
    return renderHostTable({
      plan: this.#plan,
      netd: this.#netd,
      flows: this.#flows,
      runnerUid,
      policies: this.#slots,
      pins,
    });
  }

  /**
   * A reload of the host's own firewall often flushes all tables, ours too. Until it is back, sandboxes can reach the internet whatever
   * their policy says; what no sandbox may reach is refused in their namespaces.
   */
  async #restoreIfGone(): Promise<void> {
    try {
      await run('nft', ['list', 'chain', 'inet', this.#plan.table, 'guard_sandbox']);
      return;
    } catch (error) {
      if (this.#watch === undefined || !isAbsent(error)) return;
    }
    this.#restores += 1;
    this.#log.error(
      { table: this.#plan.table },
      'our firewall table was removed by another program: loading it again',
    );
    try {
      await this.#change(this.#render(new Map()));
      await this.#dropUnaccepted();
    } catch (error) {
      this.#log.error({ err: error }, 'could not load our firewall table again');
    }
    this.#onPinsLost();
  }

  /** Ends connections that were made while no table of ours was there: the rules would let them continue. */
  async #dropUnaccepted(): Promise<void> {
    const block = formatCidr(this.#plan.block);
    await run('conntrack', ['-D', '-f', 'ipv4', '-s', block, '--mark', '0']).catch((error: unknown) => {
      // It exits with 1 when there are none.
      if (!(error instanceof ProcessError) || !/\b0 flow entries/.test(error.stderr)) throw error;
    });
  }

  /** Leads questions to another port from now on. */
  async setDnsPort(dnsPort: number): Promise<void> {
    this.#netd = { ...this.#netd, dnsPort };
    await this.#change(renderNetd(this.#plan, this.#netd));
  }

  /** Lets netd ask these name servers, and no others. */
  async setNameServers(nameServers: readonly NameServer[]): Promise<void> {
    this.#netd = { ...this.#netd, nameServers };
    await this.#change(renderNetd(this.#plan, this.#netd));
  }

  /** Leads redirected connections to another port from now on. */
  async setEgressPort(egressPort: number): Promise<void> {
    this.#netd = { ...this.#netd, egressPort };
    await this.#change(renderNetd(this.#plan, this.#netd));
  }

  /** Leads requests of mounted object stores to another port from now on. */
  async setStoresPort(storesPort: number): Promise<void> {
    if (this.#netd.storesPort === storesPort) return;
    this.#netd = { ...this.#netd, storesPort };
    await this.#change(renderNetd(this.#plan, this.#netd));
  }

  /** Puts a policy in force for a slot that has none. */
  async addPolicy(index: number, policy: SlotPolicy): Promise<void> {
    if (policy.rules === undefined && policy.intercept !== true) return;
    if (this.#slots.has(index)) throw new Error(`slot ${index} has an egress policy already`);
    await Promise.all([
      this.#change(renderPolicy(this.#plan, index, policy)),
      permitPrivate(this.#plan, index, policy.rules?.privateNets ?? []),
    ]);
    this.#slots.set(index, policy);
  }

  /** Takes the policy of a slot away, and all that was pinned for it. Does nothing where there is none. */
  async removePolicy(index: number): Promise<void> {
    const policy = this.#slots.get(index);
    if (policy === undefined) return;
    const [theirs, others] = [true, false].map((own) =>
      this.#waitingPins.filter(({ pinsOf }) => (pinsOf === index) === own),
    );
    this.#waitingPins = others ?? [];
    for (const { reject } of theirs ?? []) reject(new Error('its egress policy is being removed'));
    await this.#change(renderPolicyRemoval(this.#plan, index, policy));
    this.#slots.delete(index);
  }

  /** Forgets what was denied to the holder of a slot, soon; those that are released together share one `nft`. */
  forgetDenials(index: number): void {
    this.#stale.add(index);
    if (this.#cleaning !== undefined) return;
    this.#cleaning = setTimeout(() => {
      this.#cleaning = undefined;
      this.settleDenials().catch((error: unknown) =>
        this.#log.warn({ err: error }, 'denied connections are not forgotten'),
      );
    }, CLEANING_DELAY_MS).unref();
  }

  /** Resolves when nothing of a former holder of a slot is left in the set. */
  async settleDenials(): Promise<void> {
    if (this.#stale.size > 0) await this.denials();
  }

  /** What was denied to those that hold slots now. */
  async denials(): Promise<FirewallDenial[]> {
    const listed = await this.#listDenials();
    const stale = new Set([...this.#stale].map((index) => slotPlan(this.#plan, index).hostAddress));
    const indexes = [...this.#stale];
    const former = listed.filter(({ source }) => stale.has(source));
    if (former.length > 0) await this.#change(renderDenialsRemoval(this.#plan, former));
    for (const index of indexes) this.#stale.delete(index);
    return listed.filter(({ source }) => !stale.has(source));
  }

  async #listDenials(): Promise<FirewallDenial[]> {
    return parseDenials(await run('nft', ['-j', 'list', 'set', 'inet', this.#plan.table, DENIAL_SET]));
  }

  /** Opens addresses for a sandbox with a policy, for the times given. Rejects when its set is full. */
  async pin(index: number, pins: readonly NetdPin[]): Promise<void> {
    if (this.#slots.get(index)?.rules === undefined)
      throw new Error(`slot ${index} has no egress policy to pin addresses for`);
    await this.#changePins(index, renderPins(this.#plan, index, pins));
  }

  /** Stops watching; the table stays. */
  detach(): void {
    this.#watch?.close();
    clearTimeout(this.#cleaning);
    this.#watch = undefined;
  }

  /** Removes the table. */
  async remove(): Promise<void> {
    this.detach();
    await this.#change(`add table inet ${this.#plan.table}\ndelete table inet ${this.#plan.table}\n`);
    this.#slots.clear();
  }

  async #change(script: string): Promise<void> {
    const done = new Promise<void>((resolve, reject) => this.#waiting.push({ script, resolve, reject }));
    if (!this.#pumping) void this.#pump();
    await done;
  }

  async #changePins(index: number, script: string): Promise<void> {
    const own = this.#waitingPins.filter(({ pinsOf }) => pinsOf === index).length;
    if (own >= MAX_PINS_WAITING_PER_SLOT || this.#waitingPins.length >= MAX_PINS_WAITING)
      throw new Error('too many addresses are waiting to be pinned');
    const done = new Promise<void>((resolve, reject) =>
      this.#waitingPins.push({ script, pinsOf: index, resolve, reject }),
    );
    if (!this.#pumping) void this.#pump();
    await done;
  }

  /** Policies first, and pins when it is time for them. */
  #nextBatch(): Change[] {
    const batch = this.#waiting.splice(0, MAX_BATCH);
    const now = performance.now();
    if (this.#waiting.length > 0 || this.#waitingPins.length === 0 || now < this.#pinsFrom) return batch;
    this.#pinsFrom = now + PINS_INTERVAL_MS;
    return [...batch, ...this.#waitingPins.splice(0, MAX_BATCH)];
  }

  async #pump(): Promise<void> {
    this.#pumping = true;
    for (let batch = this.#nextBatch(); batch.length > 0; batch = this.#nextBatch()) {
      try {
        await nft(batch.map((change) => change.script).join(''));
        for (const change of batch) change.resolve();
      } catch (error) {
        if (batch.length > 1) await this.#applyOneByOne(batch);
        else batch[0]?.reject(error);
      }
    }
    this.#pumping = false;
    if (this.#waitingPins.length === 0) return;
    clearTimeout(this.#pinsTimer);
    this.#pinsTimer = setTimeout(
      () => {
        if (!this.#pumping) void this.#pump();
      },
      Math.max(1, this.#pinsFrom - performance.now()),
    );
  }

  /** A transaction fails as a whole: find out whose change it was, so that the others' go through. */
  async #applyOneByOne(batch: readonly Change[]): Promise<void> {
    for (const change of batch) {
      try {
        await nft(change.script);
        change.resolve();
      } catch (error) {
        this.#log.warn({ err: error }, 'a firewall change was refused');
        change.reject(error);
      }
    }
  }
}

interface NftSet {
  set?: { name?: string; elem?: unknown[] };
}

/** The addresses pinned in an older load of our table, with the time that is left to each; undefined when there is no such table. */
async function readPins(table: string): Promise<Map<number, NetdPin[]> | undefined> {
  const pins = new Map<number, NetdPin[]>();
  let text: string;
  try {
    text = await run('nft', ['-j', 'list', 'table', 'inet', table]);
  } catch (error) {
    if (isAbsent(error)) return undefined;
    throw error;
  }
  const listing = JSON.parse(text) as { nftables?: NftSet[] };
  for (const { set } of listing.nftables ?? []) {
    const match = /^pinned_(\d+)$/.exec(set?.name ?? '');
    if (match === null || set === undefined) continue;
    const found = (set.elem ?? []).slice(0, MAX_PINS_PER_SANDBOX).flatMap(pinOfElement);
    pins.set(Number(match[1]), found);
  }
  return pins;
}

function pinOfElement(element: unknown): NetdPin[] {
  const { val, expires } = (element as { elem?: { val?: unknown; expires?: unknown } }).elem ?? {};
  if (typeof val !== 'string' || typeof expires !== 'number') return [];
  return [{ address: val, seconds: Math.max(1, Math.ceil(expires)) }];
}

/** nft(8) says this of a table or chain that does not exist. */
function isAbsent(error: unknown): boolean {
  return error instanceof ProcessError && /No such file or directory/.test(error.stderr);
}

/** There is no table of an earlier runner. */
function ignoreAbsent(error: unknown): [] {
  if (isAbsent(error)) return [];
  throw error;
}

async function nft(script: string): Promise<void> {
  await run('nft', ['-f', '-'], { input: script });
}

/**
 * Base chains of other tables that may drop what we let through: a chain with policy `drop` at a hook that our
 * traffic passes. nftables asks every table, so our `accept` cannot overrule them.
 */
export async function findDroppingChains(ownTable: string): Promise<string[]> {
  const listing = JSON.parse(await run('nft', ['-j', 'list', 'chains'])) as {
    nftables?: { chain?: { family: string; table: string; name: string; hook?: string; policy?: string } }[];
  };
  return (listing.nftables ?? []).flatMap(({ chain }) => {
    if (chain === undefined || chain.table === ownTable || chain.policy !== 'drop') return [];
    if (chain.hook !== 'forward' && chain.hook !== 'input') return [];
    return [`${chain.family} ${chain.table} ${chain.name}`];
  });
}
