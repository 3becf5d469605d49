/** Answers and bodies of the service that tests talk to. */
import type { IncomingMessage, ServerResponse } from 'node:http';

export function send(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

export function sendPage(response: ServerResponse, url: URL, key: string, items: readonly object[]): void {
  const from = Number(url.searchParams.get('cursor') ?? 0);
  // Small pages, so that every list is read in several.
  const page = items.slice(from, from + 2).map((item) => ({ ...item, coming: undefined }));
  send(response, 200, { [key]: page, next_cursor: from + 2 < items.length ? String(from + 2) : null });
}

export async function readJson(request: IncomingMessage): Promise<Record<string, unknown>> {
  let text = '';
  for await (const chunk of request as AsyncIterable<Buffer>) text += chunk.toString('utf8');
  return JSON.parse(text || '{}') as Record<string, unknown>;
}
