import { chmod, chown, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import type { Server as HttpServer } from 'node:http';
import type { Server } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { GatewayTarget } from '@releap/contract';
import type { Logger } from 'pino';
import type { GrantLease, Grants } from '../control/grants.ts';
import type { TlsOptions } from '../http/tls-listener.ts';
import { AddressHolds } from './address-holds.ts';
import { AdminSocket } from './admin-socket.ts';
import {
  type EngineConfig,
  enginePaths,
  GATEWAY_SOCKETS,
  PREVIEW_FRONTEND,
  renderEngineConfig,
} from './engine-config.ts';
import { listenForEngine } from './engine-listener.ts';
import { type Haproxy, startHaproxy } from './haproxy.ts';
import { Lanes } from './lanes.ts';

/** Routes are confirmed so often, and used for so long without. */
const CONFIRM_MS = 150;
const CONFIRMED_FOR_MS = 600;
const REAP_MS = 2_000;
const START_MS = 15_000;
const BACKOFF_MS = { first: 200, most: 5_000 };
/** Consecutive failed starts after which the gateway serves previews itself. */
const ATTEMPTS = 3;

export interface EngineOptions {
  /** A folder of its own, absolute. */
  folder: string;
  /** User of its worker, whom the runner lets connect to sandboxes. */
  uid: number;
  lanes?: number;
  threads?: number;
  /** Addresses and CIDR blocks whose connections are of many clients. Default: trusted proxies, and this machine. */
  proxies?: readonly string[];
  /** How often the certificate is read again. */
  certificateMs?: number;
}

export interface EngineContext extends EngineOptions {
  config: Omit<EngineConfig, 'folder' | 'jail' | 'uid' | 'lanes' | 'threads'>;
  certificate: Pick<TlsOptions, 'load' | 'onChange'> | undefined;
  http: HttpServer;
  grants: Grants;
  log: Logger;
  /** It cannot be started any more. */
  onFailed: () => void;
}

const LANES = 512;
const OTHER_DESCRIPTORS = 1_000;
const CERTIFICATE_MS = 60_000;

/** HAProxy in front of previews. Requests of which it knows a route go straight to sandboxes; all others to the gateway. */
export class Engine {
  readonly #context: EngineContext;
  readonly #paths: ReturnType<typeof enginePaths>;
  readonly #holds: AddressHolds;
  readonly #lanes: Lanes;
  readonly #admin: AdminSocket;
  readonly #adding = new Set<string>();
  readonly #closing = new AbortController();
  readonly #listeners: Server[] = [];
  readonly #timers: NodeJS.Timeout[] = [];
  #haproxy: Haproxy | undefined;
  #running: Promise<void> | undefined;
  #isUp = false;
  #pem = '';
  #removeListener: (() => void) | undefined;

  private constructor(context: EngineContext) {
    this.#context = context;
    this.#paths = enginePaths(context.folder);
    this.#holds = new AddressHolds((address) => address.client_uid === context.uid);
    this.#admin = new AdminSocket(this.#paths.admin);
    this.#lanes = new Lanes({
      count: context.lanes ?? LANES,
      routes: this.#paths.routes,
      run: (command) => this.#run(command),
      log: context.log,
    });
  }

  /** @throws when HAProxy cannot be started */
  static async start(context: EngineContext): Promise<Engine> {
    const engine = new Engine(context);
    const { folder, uid, http } = context;
    const jail = join(folder, 'jail');
    await rm(folder, { recursive: true, force: true });
    await mkdir(jail, { recursive: true, mode: 0o700 });
    // Its worker may enter, and write nothing.
    await chown(jail, 0, uid);
    await chmod(jail, 0o750);
    const { config, routes, until, certificate } = engine.#paths;
    const text = renderEngineConfig({
      ...context.config,
      connections: Math.min(context.config.connections, await connectionsMax()),
      folder,
      jail,
      uid,
      lanes: context.lanes ?? LANES,
      threads: context.threads ?? 1,
    });
    try {
      engine.#listeners.push(
        await listenForEngine(join(jail, GATEWAY_SOCKETS.unknown), http, false),
        await listenForEngine(join(jail, GATEWAY_SOCKETS.refused), http, true),
      );
      await writeFile(config, text, { mode: 0o600 });
      await writeFile(routes, '', { mode: 0o600 });
      await writeFile(until, 'until 0\n', { mode: 0o600 });
      if (context.certificate !== undefined) {
        engine.#pem = await pemOf(context.certificate.load);
        await writeFile(certificate, engine.#pem, { mode: 0o600 });
      }
      await engine.#startOnce();
    } catch (error) {
      await engine.close();
      throw error;
    }
    engine.#running = engine.#keepRunning();
    engine.#every(CONFIRM_MS, () => engine.#confirm());
    engine.#every(REAP_MS, () => engine.#lanes.reap());
    if (context.certificate !== undefined) {
      const reload = engine.#every(context.certificateMs ?? CERTIFICATE_MS, () =>
        engine.#reloadCertificate(),
      );
      engine.#removeListener = context.certificate.onChange?.(reload);
    }
    return engine;
  }

  /** Routes further requests with this credential to the sandbox, if it can be reached from here. */
  offer(host: string, target: GatewayTarget, token: string | null, lease: GrantLease): void {
    const credential = lease.isPublic ? null : token;
    const key = `${host} ${credential}`;
    if (!this.#isUp || !lease.host.isLocal || this.#adding.has(key)) return;
    if (this.#lanes.has(host, credential)) return;
    this.#adding.add(key);
    this.#add(host, target, credential)
      .catch((error: unknown) => this.#context.log.debug({ err: error }, 'a preview is not routed'))
      .finally(() => this.#adding.delete(key));
  }

  async #add(host: string, target: GatewayTarget, token: string | null): Promise<void> {
    const lease = await this.#context.grants.lease(target, token);
    const hold = await this.#holds.get(lease);
    if (hold === undefined || !this.#isUp) {
      lease[Symbol.dispose]();
      hold?.release();
      return;
    }
    await this.#lanes.add({ host, token, port: target.port ?? 0, lease, hold });
  }

  /** The engine could not connect where a route led to. */
  refused(host: string, token: string | null): void {
    this.#lanes.refused(host, token);
  }

  /** Of clients. */
  async connections(): Promise<number> {
    if (!this.#isUp) return 0;
    const [header = '', row = ''] = (await this.#run(`show stat ${PREVIEW_FRONTEND} 1 -1`)).split('\n');
    return Number(row.split(',')[header.split(',').indexOf('scur')] ?? 0);
  }

  async close(): Promise<void> {
    this.#closing.abort();
    this.#removeListener?.();
    for (const timer of this.#timers) clearInterval(timer);
    this.#isUp = false;
    await this.#haproxy?.kill();
    await this.#running;
    this.#lanes.reset();
    for (const listener of this.#listeners) listener.close();
    await rm(this.#context.folder, { recursive: true, force: true });
  }

  /** @returns does it now */
  #every(ms: number, action: () => Promise<void>): () => void {
    let isBusy = false;
    const run = (): void => {
      if (isBusy || !this.#isUp) return;
      isBusy = true;
      action()
        .catch((error: unknown) => this.#context.log.warn({ err: error }, 'the engine of previews'))
        .finally(() => {
          isBusy = false;
        });
    };
    this.#timers.push(setInterval(run, ms));
    return run;
  }

  /** Without it the engine uses no route. A revocation that may be missed cannot be followed either. */
  async #confirm(): Promise<void> {
    const ms = Math.min(CONFIRMED_FOR_MS, this.#context.grants.liveForMs);
    if (ms > 0) await this.#run(`set map ${this.#paths.until} until ${Math.floor(Date.now() + ms)}`);
  }

  async #reloadCertificate(): Promise<void> {
    const { certificate, log } = this.#context;
    if (certificate === undefined) return;
    const pem = await pemOf(certificate.load);
    if (pem === this.#pem) return;
    const file = this.#paths.certificate;
    const output = await this.#run(`set ssl cert ${file} <<\n${pem}`);
    const committed = await this.#run(`commit ssl cert ${file}`);
    if (!committed.includes('Success')) {
      await this.#run(`abort ssl cert ${file}`);
      throw new Error(`the certificate of previews is not usable: ${output.trim()} ${committed.trim()}`);
    }
    await writeFile(file, pem, { mode: 0o600 });
    this.#pem = pem;
    log.info('the certificate of previews was loaded again');
  }

  /** An engine that does not answer cannot be told of a revocation. */
  async #run(command: string): Promise<string> {
    try {
      return await this.#admin.run(command);
    } catch (error) {
      if (this.#isUp) {
        this.#isUp = false;
        this.#context.log.error({ err: error }, 'the engine of previews does not answer and is killed');
        await this.#haproxy?.kill();
      }
      throw error;
    }
  }

  async #startOnce(): Promise<void> {
    const haproxy = startHaproxy(this.#paths.config, this.#context.log);
    this.#haproxy = haproxy;
    let reason: string | undefined;
    void haproxy.ended.then((how) => (reason = how));
    const deadline = performance.now() + START_MS;
    while (!(await this.#answers())) {
      if (reason === undefined && performance.now() < deadline) {
        await sleep(20);
        continue;
      }
      await haproxy.kill();
      throw new Error(`HAProxy does not start: ${reason ?? 'no answer'}`);
    }
    this.#isUp = true;
  }

  async #answers(): Promise<boolean> {
    return await this.#admin.run('show version').then(
      (output) => output.trim() !== '',
      () => false,
    );
  }

  async #keepRunning(): Promise<void> {
    const { log, onFailed } = this.#context;
    const { signal } = this.#closing;
    for (let failures = 0; ; ) {
      const how = await this.#haproxy?.ended;
      this.#isUp = false;
      this.#lanes.reset();
      if (signal.aborted) return;
      log.error({ reason: how }, 'the engine of previews has ended');
      for (;;) {
        try {
          await this.#startOnce();
          failures = 0;
          break;
        } catch (error) {
          failures++;
          log.error({ err: error }, 'the engine of previews cannot be started');
          if (failures >= ATTEMPTS) return onFailed();
          await sleep(Math.min(BACKOFF_MS.first * 2 ** failures, BACKOFF_MS.most), undefined, {
            signal,
          }).catch(() => undefined);
          if (signal.aborted) return;
        }
      }
      if (signal.aborted) await this.#haproxy?.kill();
      log.info('the engine of previews is back');
    }
  }
}

/** HAProxy does not start when it cannot have two descriptors for each connection, and some more. */
async function connectionsMax(): Promise<number> {
  const limits = await readFile('/proc/self/limits', 'utf8');
  const hard = Number(/^Max open files +\S+ +(\d+)/m.exec(limits)?.[1] ?? Infinity);
  return Math.max(100, Math.floor((hard - OTHER_DESCRIPTORS) / 2));
}

/** One file, without the empty lines that would end a payload. */
async function pemOf(load: TlsOptions['load']): Promise<string> {
  const { certificate, key } = await load();
  return `${certificate}\n${key}\n`.replace(/\n\s*\n/g, '\n');
}
