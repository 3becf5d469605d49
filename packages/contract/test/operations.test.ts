import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { renderApiReference } from '../scripts/render-api-reference.ts';
import {
  fastifySchema,
  listOperations,
  openApiDocument,
  operationErrors,
  operations,
  resources,
  toolboxOperations,
} from '../src/index.ts';

test('docs/api.md is current (else run packages/contract/scripts/write-api-reference.ts)', () => {
  const committed = readFileSync(new URL('../../../docs/api.md', import.meta.url), 'utf8');
  assert.equal(committed, renderApiReference());
});

test('the OpenAPI document is plain JSON in which every reference has its target', () => {
  const document = openApiDocument({ serverUrl: 'http://127.0.0.1:7070' });
  assert.equal(document['openapi'], '3.1.0');
  const text = JSON.stringify(document);
  assert.deepEqual(JSON.parse(text), document);
  const { schemas } = document['components'] as { schemas: Record<string, unknown> };
  const references = [...text.matchAll(/"#\/components\/schemas\/([A-Za-z]+)"/g)].map(
    (match) => match[1] ?? '',
  );
  assert.ok(references.length > 0);
  for (const name of references) assert.ok(name in schemas, name);
  assert.ok(!text.includes('"expected"'));
});

test('every operation is in the OpenAPI document, with its parameters and refusals', () => {
  const paths = openApiDocument()['paths'] as Record<
    string,
    Record<string, { operationId: string; responses: object; parameters?: { name: string; in: string }[] }>
  >;
  for (const [id, operation] of listOperations()) {
    const documented =
      paths[operation.path.replaceAll(/:([a-z_]+)/g, '{$1}')]?.[operation.method.toLowerCase()];
    assert.equal(documented?.operationId, id);
    for (const [status] of operationErrors(operation)) assert.ok(String(status) in documented.responses);
    const inPath = (documented.parameters ?? [])
      .filter((parameter) => parameter.in === 'path')
      .map(({ name }) => name);
    assert.deepEqual(
      inPath,
      [...operation.path.matchAll(/:([a-z_]+)/g)].map((match) => match[1]),
    );
  }
});

test('no two operations have one method and path', () => {
  const all = listOperations().map(([, operation]) => `${operation.method} ${operation.path}`);
  assert.equal(new Set(all).size, all.length);
});

test('text answers have no response schema for Fastify, so that they pass untouched', () => {
  assert.equal(fastifySchema(operations.getConsoleLog).response, undefined);
  assert.ok(fastifySchema(operations.getSandbox).response?.[200]);
});

test('the table has the operations of all resources, each with a tag of a resource and a name of its own', () => {
  assert.deepEqual(
    new Set(Object.values<unknown>({ ...operations, ...toolboxOperations })),
    new Set(resources.flatMap((resource) => Object.values<unknown>(resource.operations))),
  );
  const tags = resources.flatMap((resource) => Object.keys(resource.tags));
  assert.deepEqual(tags, [...new Set(tags)]);
  for (const [id, operation] of listOperations()) assert.ok(tags.includes(operation.tag), id);
  for (const names of [
    listOperations().map(([id]) => id),
    resources.flatMap((resource) => Object.keys(resource.schemas)),
  ])
    assert.deepEqual(names, [...new Set(names)]);
});
