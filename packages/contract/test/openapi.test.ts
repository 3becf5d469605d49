/** What generators of clients need of the OpenAPI documents. The nightly run gives the documents to generators. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { codesOf, listOperations, OPENAPI_PLANES, openApiDocument, type ErrorStatus } from '../src/index.ts';

type Node = Record<string, unknown>;
interface Document {
  info: { version: string };
  paths: Record<string, Record<string, OperationNode>>;
  components: { schemas: Record<string, Node> };
}
interface OperationNode {
  operationId: string;
  requestBody?: { required: boolean; content: Record<string, { schema: Node }> };
  responses: Record<string, { content?: Record<string, { schema: Node }>; 'x-codes'?: string[] }>;
  'x-idempotent'?: string;
  'x-items'?: string;
  'x-websocket'?: { client: Node; server: Node };
}

/** Every object of the document that is or has a part of a schema. */
function* nodes(value: unknown): Iterable<Node> {
  if (value === null || typeof value !== 'object') return;
  if (!Array.isArray(value)) yield value as Node;
  for (const child of Object.values(value)) yield* nodes(child);
}

const operationsOf = (document: Document): OperationNode[] =>
  Object.values(document.paths).flatMap((methods) =>
    Object.values(methods).filter((one) => !Array.isArray(one)),
  );

for (const plane of OPENAPI_PLANES)
  describe(`the document of the plane ${plane}`, () => {
    const document = openApiDocument({ plane }) as unknown as Document;
    const all = [...nodes(document)];

    test('every enum has a type, and every map is by additionalProperties', () => {
      for (const node of all) {
        if (Array.isArray(node['enum'])) assert.ok('type' in node || 'default' in node, JSON.stringify(node));
        assert.ok(!('patternProperties' in node), JSON.stringify(node));
      }
    });

    test('every integer and every time has a format', () => {
      for (const node of all) {
        if (node['type'] === 'integer') assert.match(String(node['format']), /^int(32|64)$/);
        if (typeof node['properties'] !== 'object' || node['properties'] === null) continue;
        for (const [key, child] of Object.entries(node['properties']))
          if (/(_at|At)$/.test(key)) {
            const times = [...nodes(child)].filter(({ type }) => type === 'string');
            assert.ok(times.length > 0 && times.every(({ format }) => format === 'date-time'), key);
          }
      }
    });

    test('every discriminator names a property that each alternative has', () => {
      for (const node of all) {
        const { discriminator, oneOf } = node as { discriminator?: Node; oneOf?: { $ref: string }[] };
        if (discriminator === undefined) continue;
        const mapping = discriminator['mapping'] as Record<string, string>;
        assert.deepEqual(
          Object.values(mapping),
          oneOf?.map(({ $ref }) => $ref),
        );
        for (const [value, reference] of Object.entries(mapping)) {
          const schema = document.components.schemas[reference.split('/').at(-1) ?? ''] as {
            properties: Record<string, Node>;
          };
          assert.equal(schema.properties[String(discriminator['propertyName'])]?.['const'], value);
        }
      }
    });

    test('every body has a schema and a type that generators know', () => {
      for (const { operationId, requestBody, responses } of operationsOf(document)) {
        const contents = [requestBody, ...Object.values(responses)].flatMap((one) =>
          Object.entries(one?.content ?? {}),
        );
        for (const [type, { schema }] of contents) {
          assert.ok(!type.includes('*'), operationId);
          assert.ok(type === 'application/json' || Object.keys(schema).length > 0, `${operationId} ${type}`);
        }
      }
    });

    test('every error says which codes it may have, and its schema has them', () => {
      for (const { operationId, responses } of operationsOf(document))
        for (const [status, { 'x-codes': codes = [] }] of Object.entries(responses)) {
          if (Number(status) < 400) continue;
          const known: string[] = codesOf(Number(status) as ErrorStatus);
          assert.equal(codes[0], known[0], `${operationId} ${status}`);
          assert.ok(codes.every((code) => known.includes(code)));
        }
    });

    test('every operation says whether it may be repeated', () => {
      for (const one of operationsOf(document))
        assert.match(String(one['x-idempotent']), /^(always|with_key|never)$/, one.operationId);
    });
  });

test('the version of the documents is that of the package', () => {
  const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as {
    version: string;
  };
  assert.equal((openApiDocument() as unknown as Document).info.version, version);
});

test('every list with pages names the field of its items, and a cursor to continue at', () => {
  for (const [id, { items, query, success }] of listOperations()) {
    const schema: { properties?: Record<string, Node> } | undefined = success.response.schema;
    const parameters: { properties?: object } | undefined = query;
    const fields = schema?.properties;
    const isPaged = 'cursor' in (parameters?.properties ?? {});
    if (!isPaged && items === undefined) continue;
    assert.equal(fields?.[items ?? '']?.['type'], 'array', id);
    if (isPaged) assert.ok('next_cursor' in (fields ?? {}), id);
  }
});

test('every WebSocket describes the messages of both sides', () => {
  for (const [id, { success, websocket }] of listOperations()) {
    if (success.status !== 101) continue;
    assert.ok(websocket !== undefined, id);
    for (const side of [websocket.client, websocket.server])
      assert.ok(side.text !== undefined || side.binary !== undefined, id);
  }
});
