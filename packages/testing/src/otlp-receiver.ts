/** A receiver of traces over OTLP/HTTP with protobuf bodies (https://opentelemetry.io/docs/specs/otlp/#otlphttp). */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';

export interface ReceivedSpan {
  traceId: string;
  spanId: string;
  /** Empty without one. */
  parentId: string;
  name: string;
  /** `service.name` of the process. */
  service: string;
  attributes: Record<string, string | number>;
  isFailed: boolean;
}

export interface OtlpReceiver extends AsyncDisposable {
  /** Base URL, as OTEL_EXPORTER_OTLP_ENDPOINT. */
  readonly endpoint: string;
  readonly spans: ReceivedSpan[];
}

export async function startOtlpReceiver(): Promise<OtlpReceiver> {
  const spans: ReceivedSpan[] = [];
  const server = createServer((request, response) => {
    const isExport = request.method === 'POST' && request.url === '/v1/traces';
    buffer(request).then(
      (body) => {
        if (isExport && request.headers['content-type'] === 'application/x-protobuf') {
          spans.push(...readExport(body));
          response.writeHead(200, { 'content-type': 'application/x-protobuf' }).end();
        } else response.writeHead(404).end();
      },
      () => response.destroy(),
    );
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    spans,
    async [Symbol.asyncDispose]() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

/** Numbers of fields: opentelemetry/proto/trace/v1/trace.proto, common/v1/common.proto. */
function readExport(body: Buffer): ReceivedSpan[] {
  return messages(body, 1).flatMap((ofResource) => {
    const resource = messages(ofResource, 1).flatMap((one) => messages(one, 1));
    const service = String(attributesOf(resource)['service.name']);
    return messages(ofResource, 2)
      .flatMap((ofScope) => messages(ofScope, 2))
      .map((span) => {
        const [status = Buffer.of()] = messages(span, 15);
        const hex = (field: number): string => (messages(span, field)[0] ?? Buffer.of()).toString('hex');
        return {
          traceId: hex(1),
          spanId: hex(2),
          parentId: hex(4),
          name: messages(span, 5).join(''),
          service,
          attributes: attributesOf(messages(span, 9)),
          isFailed: numbers(status, 3).includes(2),
        };
      });
  });
}

function attributesOf(pairs: readonly Buffer[]): Record<string, string | number> {
  return Object.fromEntries(
    pairs.map((pair) => {
      const [value = Buffer.of()] = messages(pair, 2);
      const [text] = messages(value, 1);
      return [messages(pair, 1).join(''), text?.toString() ?? numbers(value, 3)[0] ?? 0];
    }),
  );
}

const messages = (body: Buffer, field: number): Buffer[] =>
  [...fields(body)].flatMap(([number, value]) =>
    number === field && typeof value !== 'number' ? [value] : [],
  );
const numbers = (body: Buffer, field: number): number[] =>
  [...fields(body)].flatMap(([number, value]) =>
    number === field && typeof value === 'number' ? [value] : [],
  );

/** Fields of a message in the wire format of Protocol Buffers. */
function* fields(body: Buffer): Iterable<[field: number, value: Buffer | number]> {
  let at = 0;
  const varint = (): number => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = body[at++] ?? 0;
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < body.length) {
    const tag = varint();
    const wire = tag & 7;
    if (wire === 0) yield [tag >>> 3, varint()];
    else {
      const length = wire === 1 ? 8 : wire === 5 ? 4 : varint();
      yield [tag >>> 3, body.subarray(at, at + length)];
      at += length;
    }
  }
}
