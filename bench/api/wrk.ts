/** Load from `wrk`, a process of its own that costs far less than the servers it asks. */
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** All connections are busy all the time; more of them only wait in line. */
export const CONNECTIONS = 32;

export interface Load {
  url: string;
  /** Requested in turns. */
  paths: string[];
  method: 'GET' | 'POST';
  headers: Record<string, string>;
  /** Values of the header `authorization`, in turns. */
  authorizations?: string[];
  body?: string;
}

export interface LoadResult {
  requestsPerSecond: number;
  /** Milliseconds. */
  p50: number;
  p99: number;
}

/** Writes the script for `wrk` that makes these requests; they are put together once. */
export async function writeScript(path: string, load: Load): Promise<void> {
  const text = (value: string): string => `[==[${value}]==]`;
  const headers = Object.entries(load.headers).map(([name, value]) => `[ ${text(name)} ]=${text(value)}`);
  await writeFile(
    path,
    `local paths = {${load.paths.map(text).join(',')}}
local authorizations = {${(load.authorizations ?? []).map(text).join(',')}}
local requests, at = {}, 0
init = function()
  for i = 1, math.max(#paths, #authorizations) do
    local path = paths[(i - 1) % #paths + 1]
    if #authorizations > 0 then wrk.headers.authorization = authorizations[i] end
    requests[i] = wrk.format("${load.method}", path, wrk.headers, ${load.body === undefined ? 'nil' : text(load.body)})
  end
end
for name, value in pairs({${headers.join(',')}}) do wrk.headers[name] = value end
request = function()
  at = at % #requests + 1
  return requests[at]
end
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format('\\nRESULT {"requests":%d,"micros":%d,"failed":%d,"p50":%d,"p99":%d}\\n', summary.requests,
    summary.duration, e.connect + e.read + e.write + e.status + e.timeout, latency:percentile(50), latency:percentile(99)))
end
`,
  );
}

/** @throws when any request failed: a fast refusal is no measurement */
export async function runLoad(
  script: string,
  url: string,
  seconds: number,
  connections = CONNECTIONS,
): Promise<LoadResult> {
  const args = ['-t', '1', '-c', String(connections), '-d', `${seconds}s`, '-s', script, url];
  const { stdout } = await run('wrk', args, { timeout: (seconds + 30) * 1000 });
  const line = /^RESULT (.*)$/m.exec(stdout)?.[1];
  if (line === undefined) throw new Error(`wrk did not say what it measured: ${stdout}`);
  const { requests, micros, failed, p50, p99 } = JSON.parse(line) as Record<string, number> & {
    requests: number;
    micros: number;
    failed: number;
    p50: number;
    p99: number;
  };
  if (failed > 0 || requests === 0) throw new Error(`${failed} of ${requests} requests to ${url} failed`);
  return { requestsPerSecond: requests / (micros / 1e6), p50: p50 / 1000, p99: p99 / 1000 };
}
