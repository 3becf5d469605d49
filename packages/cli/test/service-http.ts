/** Requests and answers of the service that tests talk to, checked against the contract. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import {
  ApiError,
  type Operation,
  operations,
  operatorOperations,
  toolboxOperations,
  validate,
} from '@releap/contract';
import { Check, Errors } from 'typebox/value';

const TABLE: Operation[] = [
  ...Object.values<Operation>(operations),
  ...Object.values<Operation>(operatorOperations),
  ...Object.values<Operation>(toolboxOperations).map((operation) => ({
    ...operation,
    path: `/toolbox/:vm_id${operation.path}`,
  })),
];

const asked = new WeakMap<IncomingMessage | ServerResponse, Operation>();

/** Remembers which operation is asked for, and checks its query as the real service does. */
export function expectOperation(request: IncomingMessage, response: ServerResponse, url: URL): void {
  const operation = TABLE.find(
    ({ method, path }) =>
      method === request.method &&
      new RegExp(`^${path.replaceAll(/:[a-z_]+/g, '[^/]*')}$`).test(url.pathname),
  );
  if (operation === undefined) return;
  asked.set(request, operation);
  asked.set(response, operation);
  if (operation.query) validate(operation.query, 'query', Object.fromEntries(url.searchParams));
}

/** Answers. What the contract does not allow as an answer of this operation is a failure of the test. */
export function send(response: ServerResponse, status: number, body: unknown): void {
  const expected = asked.get(response)?.success;
  const text = JSON.stringify(body);
  if (expected?.status === status && expected.response.schema !== undefined) {
    const { schema } = expected.response;
    const value: unknown = JSON.parse(text);
    if (!Check(schema, value))
      throw new Error(
        `the contract does not allow this answer: ${JSON.stringify(Errors(schema, value)[0])} ${text}`,
      );
  } else if (expected !== undefined && status < 300)
    throw new Error(`the contract does not allow status ${status}`);
  response.writeHead(status, { 'content-type': 'application/json' }).end(text);
}

/** Answers as a service of another kind, or a broken one, would: unchecked. */
export function sendForeign(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

/** What the real service would answer to a request that its schemas refuse. */
export function sendError(response: ServerResponse, error: unknown): void {
  if (error instanceof ApiError) send(response, error.status, error.body);
  else send(response, 500, { error: String(error) });
}

export function sendPage(response: ServerResponse, url: URL, key: string, items: readonly object[]): void {
  const from = Number(url.searchParams.get('cursor') ?? 0);
  // Small pages, so that every list is read in several.
  const page = items.slice(from, from + 2).map((item) => ({ ...item, coming: undefined }));
  send(response, 200, { [key]: page, next_cursor: from + 2 < items.length ? String(from + 2) : null });
}

/** The body, as the schema of the operation lets it through; a 400 is thrown for one that it refuses. */
export async function readJson(request: IncomingMessage): Promise<Record<string, unknown>> {
  let text = '';
  for await (const chunk of request as AsyncIterable<Buffer>) text += chunk.toString('utf8');
  const body = JSON.parse(text || '{}') as Record<string, unknown>;
  const schema = asked.get(request)?.body;
  return schema === undefined ? body : (validate(schema, 'body', body) as Record<string, unknown>);
}
