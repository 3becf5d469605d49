import { lstat, mkdir, rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { RUNNER_SECRETS_MAX, tokenDigest, type SandboxSecret } from '@releap/contract';
import {
  INTERCEPT_PROTOCOL,
  INTERCEPT_REPLY_MAX_BYTES,
  InterceptorToRunner,
  RateLimit,
  type InterceptSecret,
  type RunnerToInterceptor,
} from '@releap/contract/netd';
import type { Logger } from 'pino';
import type { HelperConnection, HelperProtocol } from '../netd/helper-connection.ts';
import { HelperProcess } from '../netd/helper-process.ts';
import { HelperSupervisor } from '../netd/helper-supervisor.ts';
import type { SecretsSource } from './secrets-client.ts';

const INTERCEPTOR: HelperProtocol<RunnerToInterceptor, typeof InterceptorToRunner> = {
  name: 'the interceptor',
  version: INTERCEPT_PROTOCOL,
  received: InterceptorToRunner,
  receivedMaxBytes: INTERCEPT_REPLY_MAX_BYTES,
  waitingMaxBytes: 128 * 1024 * 1024,
};
type Connection = HelperConnection<RunnerToInterceptor, typeof InterceptorToRunner>;

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
const LOG_LINES = { perSecond: 1, burst: 20 };

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
  readonly #helper: HelperSupervisor<RunnerToInterceptor, typeof InterceptorToRunner>;
  readonly #sandboxes = new Map<string, Sandbox>();
  readonly #logged = new RateLimit(LOG_LINES);
  #wake = new AbortController();

  constructor(options: InterceptorOptions) {
    this.#options = options;
    const { dir, guestSocket, uid, netdUid, log } = options;
    this.#helper = new HelperSupervisor({
      process: new HelperProcess(dir, {
        name: 'intercept',
        file: 'src/intercept/main.ts',
        args: [guestSocket, String(uid), String(netdUid)],
      }),
      protocol: INTERCEPTOR,
      prepare: async () => {
        const folder = dirname(guestSocket);
        await mkdir(folder, { recursive: true, mode: 0o711 });
        if (!(await lstat(folder)).isDirectory()) throw new Error(`${folder} is not a folder`);
      },
      serve: (connection) => this.#serve(connection),
      onRequest: ({ request }, connection) => void this.#sign(request, connection),
      log,
    });
  }

  /** The process, for tests and people; undefined while there is none. */
  async pid(): Promise<number | undefined> {
    return await this.#helper.pid();
  }

  /** From now on placeholders of this sandbox are replaced. @param env with its placeholders */
  put(vmId: string, env: Record<string, string>): void {
    this.#sandboxes.set(vmId, { env });
    this.#helper.start();
    this.#wake.abort();
  }

  /** Placeholders of this sandbox are worth nothing any more. */
  remove(vmId: string): void {
    if (!this.#sandboxes.delete(vmId)) return;
    this.#helper.connection?.tell({ type: 'remove', vm_id: vmId });
  }

  /** The runner ends, the interceptor continues. */
  async detach(): Promise<void> {
    await this.#helper.detach();
  }

  /** Ends the interceptor. */
  async stop(): Promise<void> {
    await this.#helper.stop();
    await rm(dirname(this.#options.guestSocket), { recursive: true, force: true });
  }

  /** Gives a connected interceptor what it needs, until it is lost. */
  async #serve(connection: Connection): Promise<void> {
    const { extraCa } = this.#options;
    connection.send({
      type: 'hello',
      protocol: INTERCEPT_PROTOCOL,
      ...(extraCa === undefined ? {} : { extra_ca: extraCa }),
    });
    for (const sandbox of this.#sandboxes.values()) delete sandbox.revision;
    const lost = new AbortController();
    void connection.lost.then(() => lost.abort());
    let synced = false;
    while (!lost.signal.aborted) {
      const isComplete = await this.#update(connection);
      // Sandboxes of before this runner go once it has put all of its own.
      if (isComplete && !synced) {
        connection.tell({ type: 'synced' });
        synced = true;
      }
      this.#wake = new AbortController();
      const isUpToDate = [...this.#sandboxes.values()].every(({ revision }) => revision !== undefined);
      const pause = isUpToDate ? POLL_MS : isComplete ? 0 : RETRY_MS;
      const signal = AbortSignal.any([lost.signal, this.#wake.signal]);
      await sleep(pause, undefined, { signal, ref: false }).catch(() => undefined);
    }
  }

  /** Asks for what has changed, and passes it on. @returns whether control has answered */
  async #update(connection: Connection): Promise<boolean> {
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
          connection.tell({
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

  async #sign(request: string, connection: Connection): Promise<void> {
    try {
      connection.send({
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
