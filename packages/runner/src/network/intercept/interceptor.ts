import { lstat, mkdir, rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { RUNNER_SECRETS_MAX, tokenDigest, type SandboxSecret } from '@releap/contract';
import { INTERCEPT_PROTOCOL, RateLimit, type InterceptSecret } from '@releap/contract/netd';
import type { Logger } from 'pino';
import { NetdProcess, netdVersion } from '../netd/netd-process.ts';
import { InterceptorLink } from './interceptor-link.ts';
import type { SecretsSource } from './secrets-client.ts';

export interface InterceptorOptions {
  /** A folder of its own. */
  dir: string;
  /** Where netd hands connections over. Its folder is made; every user may reach the socket, only netd may connect. */
  guestSocket: string;
  /** The user that it becomes, and netd's. */
  uid: number;
  netdUid: number;
  source: SecretsSource;
  /** Certificates of authorities, PEM, that servers may be verified with besides those of the host. */
  extraCa?: string | undefined;
  /** The secrets of a sandbox may be sent to these domains from now on. */
  onDomains: (vmId: string, domains: readonly string[]) => void;
  log: Logger;
}

/** How soon a changed secret is used by sandboxes that run. */
const POLL_MS = 2_000;
const RETRY_MS = 1_000;
const START_DEADLINE_MS = 15_000;
const CONNECT_POLL_MS = 20;
const PING_MS = 5_000;
const LOG_LINES = { perSecond: 10, burst: 200 };

interface Sandbox {
  /** Variables with placeholders. */
  env: Record<string, string>;
  /** Of what the interceptor has. */
  revision?: string;
}

/**
 * The runner's side of the interceptor: runs one as soon as there is a sandbox with secrets that may be sent somewhere, and
 * gives it the secrets, which it keeps nowhere itself. After a restart of either they are asked for again.
 */
export class Interceptor {
  readonly #options: InterceptorOptions;
  readonly #process: NetdProcess;
  readonly #sandboxes = new Map<string, Sandbox>();
  readonly #stopping = new AbortController();
  readonly #logged = new RateLimit(LOG_LINES);
  readonly #ping: NodeJS.Timeout;
  #wake = new AbortController();
  #running: Promise<void> | undefined;
  #link: InterceptorLink | undefined;

  constructor(options: InterceptorOptions) {
    this.#options = options;
    const { dir, guestSocket, uid, netdUid } = options;
    this.#process = new NetdProcess(dir, {
      name: 'intercept',
      file: 'src/intercept/main.ts',
      args: [guestSocket, String(uid), String(netdUid)],
    });
    this.#ping = setInterval(() => this.#link?.request({ type: 'ping' }), PING_MS).unref();
  }

  /** The process, for tests and people; undefined while there is none. */
  async pid(): Promise<number | undefined> {
    return (await this.#process.running())?.pid;
  }

  /** From now on placeholders of this sandbox are replaced. @param env with its placeholders */
  put(vmId: string, env: Record<string, string>): void {
    this.#sandboxes.set(vmId, { env });
    this.#running ??= this.#keepRunning();
    this.#wake.abort();
  }

  /** Placeholders of this sandbox are worth nothing any more. */
  remove(vmId: string): void {
    if (!this.#sandboxes.delete(vmId)) return;
    this.#link?.request({ type: 'remove', vm_id: vmId });
  }

  /** The runner ends, the interceptor continues. */
  async detach(): Promise<void> {
    this.#stopping.abort();
    clearInterval(this.#ping);
    this.#wake.abort();
    this.#link?.end('the runner is ending');
    await this.#running;
  }

  /** Ends the interceptor. */
  async stop(): Promise<void> {
    await this.detach();
    await this.#process.remove();
    await rm(dirname(this.#options.guestSocket), { recursive: true, force: true });
  }

  async #keepRunning(): Promise<void> {
    const { log } = this.#options;
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      const why = await this.#serve().catch((error: unknown) =>
        error instanceof Error ? error.message : String(error),
      );
      if (signal.aborted) return;
      await this.#process
        .kill()
        .catch((err: unknown) => log.error({ err }, 'the interceptor could not be ended'));
      const output = await this.#process.lastOutput();
      log.error({ why, ...(output === '' ? {} : { output }) }, 'the interceptor ended');
      await sleep(RETRY_MS, undefined, { signal }).catch(() => undefined);
    }
  }

  /** From the start of one, or from finding it, to its end. @returns why it ended */
  async #serve(): Promise<string> {
    const { extraCa } = this.#options;
    const link = await this.#connect();
    link.send({
      type: 'hello',
      protocol: INTERCEPT_PROTOCOL,
      ...(extraCa === undefined ? {} : { extra_ca: extraCa }),
    });
    for (const sandbox of this.#sandboxes.values()) delete sandbox.revision;
    this.#link = link;
    const lost = new AbortController();
    void link.lost.then(() => {
      lost.abort();
      this.#wake.abort();
    });
    let synced = false;
    while (!lost.signal.aborted) {
      const isComplete = await this.#update(link);
      // Sandboxes of before this runner go once it has put all of its own.
      if (isComplete && !synced) {
        link.request({ type: 'synced' });
        synced = true;
      }
      this.#wake = new AbortController();
      const isUpToDate = [...this.#sandboxes.values()].every(({ revision }) => revision !== undefined);
      const pause = isUpToDate ? POLL_MS : isComplete ? 0 : RETRY_MS;
      const signal = AbortSignal.any([lost.signal, this.#wake.signal]);
      await sleep(pause, undefined, { signal, ref: false }).catch(() => undefined);
    }
    this.#link = undefined;
    return await link.lost;
  }

  /** Asks for what has changed, and passes it on. @returns whether control has answered */
  async #update(link: InterceptorLink): Promise<boolean> {
    const { source, onDomains, log } = this.#options;
    const asked = [...this.#sandboxes].map(([id, { revision }]) => ({
      id,
      ...(revision === undefined ? {} : { revision }),
    }));
    try {
      // A host may have more sandboxes than one request may name.
      for (let more = true, at = 0; at < asked.length; at += more ? 0 : RUNNER_SECRETS_MAX) {
        const answer = await source.changed(asked.slice(at, at + RUNNER_SECRETS_MAX));
        for (const { id, revision, secrets } of answer.sandboxes) {
          const sandbox = this.#sandboxes.get(id);
          const known = asked.find((one) => one.id === id);
          if (known !== undefined) known.revision = revision;
          if (sandbox === undefined) continue;
          link.request({
            type: 'put',
            vm_id: id,
            secrets: secrets.map((one) => withPlaceholder(one, sandbox.env)),
          });
          sandbox.revision = revision;
          onDomains(id, [...new Set(secrets.flatMap((one) => one.allowed_domains))]);
        }
        more = answer.more;
      }
      return true;
    } catch (error) {
      // What the interceptor has stays in use.
      if (this.#logged.take()) log.warn({ why: String(error) }, 'secrets of sandboxes cannot be asked for');
      return false;
    }
  }

  async #connect(): Promise<InterceptorLink> {
    const version = netdVersion();
    if ((await this.#process.running()) !== undefined) {
      const found = await this.#handshake(version).catch(() => undefined);
      if (found !== undefined) return found;
    }
    const folder = dirname(this.#options.guestSocket);
    await mkdir(folder, { recursive: true, mode: 0o711 });
    if (!(await lstat(folder)).isDirectory()) throw new Error(`${folder} is not a folder`);
    await this.#process.start();
    const end = performance.now() + START_DEADLINE_MS;
    for (;;) {
      await sleep(CONNECT_POLL_MS);
      try {
        return await this.#handshake(version);
      } catch (error) {
        this.#stopping.signal.throwIfAborted();
        if (performance.now() > end || (await this.#process.running()) === undefined) throw error;
      }
    }
  }

  /** @throws when none listens, or one of another version */
  async #handshake(version: string): Promise<InterceptorLink> {
    const greeted = Promise.withResolvers<void>();
    const link = await InterceptorLink.open(this.#process.socketPath, (event, from) => {
      if (event.type === 'hello') {
        if (event.protocol === INTERCEPT_PROTOCOL && event.version === version) return greeted.resolve();
        return greeted.reject(new Error(`it is of version ${event.version}, protocol ${event.protocol}`));
      }
      if (event.type === 'sign') void this.#sign(event.request, from);
      else if (this.#logged.take()) this.#options.log[event.level](event.facts, event.message);
    });
    const timer = setTimeout(() => greeted.reject(new Error('no greeting')), START_DEADLINE_MS);
    void link.lost.then((why) => greeted.reject(new Error(why)));
    try {
      await greeted.promise;
      return link;
    } catch (error) {
      link.end('it is to be replaced');
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  async #sign(request: string, link: InterceptorLink): Promise<void> {
    try {
      link.send({
        type: 'certificate',
        request,
        certificate: await this.#options.source.certificate(request),
      });
    } catch (error) {
      // It asks again.
      this.#options.log.warn({ why: String(error) }, 'a certificate for the interceptor cannot be asked for');
    }
  }
}

/** The placeholder that the environment has is the one that responses get. */
function withPlaceholder(secret: SandboxSecret, env: Record<string, string>): InterceptSecret {
  const { name, value, allowed_domains, placeholders } = secret;
  const own = env[name];
  const isOwn = own !== undefined && placeholders.includes(tokenDigest(own).toString('hex'));
  return { value, allowed_domains, placeholders, ...(isOwn ? { placeholder: own } : {}) };
}
