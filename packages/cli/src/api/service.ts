/** The operations of the REST API that the command line uses, typed by the contract. */
import type {
  ImageCreateRequest,
  ImageCreateResponse,
  ImageRecord,
  JobRecord,
  RegionRecord,
  SandboxCreateRequest,
  SandboxCreateResponse,
  SandboxDeleteResponse,
  SandboxForkResponse,
  SandboxLifecycleResponse,
  SandboxRecord,
  SandboxStatus,
} from '@releap/contract';
import { CliError } from '../cli-error.ts';
import { loadSettings } from '../settings.ts';
import type { Context } from '../terminal.ts';
import { Http } from './http.ts';
import type { Repeatable } from './retry.ts';

const PAGE = 200;
/** How long one long poll lasts; the service allows 60 s, proxies between often less. */
export const POLL_MS = 25_000;
/** A fork may be answered only when the state of its source has been taken. */
const FORK_MS = 60_000;
/** What an answer may take beyond the poll that was asked for. */
export const POLL_SLACK_MS = 15_000;

export class Service implements AsyncDisposable {
  readonly http: Http;
  readonly url: string;
  #regions: RegionRecord[] | undefined;

  constructor(http: Http, url: string) {
    this.http = http;
    this.url = url;
  }

  createSandbox(body: SandboxCreateRequest, headers: Repeatable): Promise<SandboxCreateResponse> {
    return this.http.json('/vms', { method: 'POST', json: body, headers });
  }

  getSandbox(id: string): Promise<SandboxRecord> {
    return this.http.json(`/vms/${encodeURIComponent(id)}`);
  }

  deleteSandbox(id: string): Promise<SandboxDeleteResponse> {
    return this.http.json(`/vms/${encodeURIComponent(id)}`, { method: 'DELETE' });
  }

  /** Answers with the status it has then: on its way, or already there. */
  changeSandbox(id: string, verb: 'stop' | 'start' | 'pause' | 'resume'): Promise<SandboxLifecycleResponse> {
    return this.http.json(`/vms/${encodeURIComponent(id)}/${verb}`, { method: 'POST' });
  }

  /** A copy of it; without a name the service makes one of the source's. */
  forkSandbox(id: string, name: string | undefined, headers: Repeatable): Promise<SandboxForkResponse> {
    return this.http.json(`/vms/${encodeURIComponent(id)}/fork`, {
      method: 'POST',
      json: name === undefined ? {} : { name },
      headers,
      timeoutMs: FORK_MS,
    });
  }

  async *sandboxes(): AsyncGenerator<SandboxRecord> {
    yield* this.pages<SandboxRecord>('/vms', 'vms');
  }

  async *images(): AsyncGenerator<ImageRecord> {
    yield* this.pages<ImageRecord>('/images', 'images');
  }

  createImage(body: ImageCreateRequest): Promise<ImageCreateResponse> {
    return this.http.json('/images', { method: 'POST', json: body });
  }

  getJob(id: string): Promise<JobRecord> {
    return this.http.json(`/jobs/${encodeURIComponent(id)}`);
  }

  async regions(): Promise<RegionRecord[]> {
    this.#regions ??= await this.http.json<RegionRecord[]>('/regions');
    return this.#regions;
  }

  /** One long poll: the record at that status, at one that ends the wait, or as it is after some seconds. */
  pollSandbox(
    id: string,
    wait: { wait?: SandboxStatus; wait_exact?: SandboxStatus },
    ms = POLL_MS,
  ): Promise<SandboxRecord> {
    const timeout = Math.max(0, Math.min(ms, POLL_MS));
    return this.http.json(`/vms/${encodeURIComponent(id)}`, {
      query: { ...wait, timeout_ms: timeout },
      timeoutMs: timeout + POLL_SLACK_MS,
    });
  }

  /** All of a list that comes in pages, by the key of its items. */
  async *pages<T>(path: string, key: 'vms' | 'images' | 'snapshots'): AsyncGenerator<T> {
    let cursor: string | undefined;
    do {
      const page = await this.http.json<Record<string, unknown>>(path, { query: { limit: PAGE, cursor } });
      const found = page[key];
      if (!Array.isArray(found))
        throw new CliError(`${this.url} did not answer with a list: is it a Releap service?`);
      yield* found as T[];
      cursor = typeof page['next_cursor'] === 'string' ? page['next_cursor'] : undefined;
    } while (cursor !== undefined);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.http[Symbol.asyncDispose]();
  }
}

/** The service of the settings. `signal` replaces the context's where work has to go on after a Ctrl-C. */
export function openService(context: Context, signal: AbortSignal = context.signal): Service {
  const settings = loadSettings(context);
  return new Service(new Http({ baseUrl: settings.url, apiKey: settings.apiKey, signal }), settings.url);
}
