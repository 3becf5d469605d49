/** Secrets and credentials for registries of the service that tests talk to. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { readJson, send } from './service-http.ts';
import type { TestService } from './service-state.ts';

export async function keptPath(
  { kept }: TestService,
  request: IncomingMessage,
  response: ServerResponse,
  kind: 'secrets' | 'registries',
  encoded: string,
): Promise<void> {
  const name = decodeURIComponent(encoded);
  const path = `${kind}/${name}`;
  if (request.method === 'PUT') {
    if (name.includes('://'))
      return send(response, 400, { error: `host must be host[:port], but was "${name}"` });
    kept.set(path, await readJson(request));
    response.writeHead(204).end();
  } else if (request.method === 'DELETE') {
    kept.delete(path);
    response.writeHead(204).end();
  } else {
    const records = [...kept]
      .filter(([key]) => key.startsWith(`${kind}/`))
      .map(([key, { value: _value, password: _password, ...record }]) => ({
        [kind === 'secrets' ? 'name' : 'host']: key.slice(kind.length + 1),
        ...(kind === 'secrets' ? { allowed_domains: [], created_at: new Date().toISOString() } : {}),
        ...record,
        updated_at: new Date().toISOString(),
      }));
    send(response, 200, { [kind]: records });
  }
}
