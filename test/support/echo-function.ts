/** A function whose handler answers with its body: the web server of busybox, and a program that it starts for each request. */
import assert from 'node:assert/strict';
import type { Service } from '@releap/testing/service';

const PROGRAM = `#!/bin/sh
printf 'Content-Type: application/json\\r\\n\\r\\n'
exec head -c "\${CONTENT_LENGTH:-0}"
`;

/** Deploys it, and waits for nothing. */
export async function deployEcho(
  service: Service,
  name: string,
  config: Record<string, unknown> = {},
): Promise<void> {
  const script = `mkdir -p /tmp/www/cgi-bin && printf '%s' "$PROGRAM" > /tmp/www/cgi-bin/index.cgi && chmod +x /tmp/www/cgi-bin/index.cgi &&
    exec httpd -f -p "$RLP_FN_PORT" -h /tmp/www`;
  const { status, body } = await service.call('POST', '/fns', {
    name,
    image: 'busybox',
    handler: ['sh', '-c', script],
    env: { PROGRAM },
    mem_mib: 128,
    scratch_mib: 64,
    ...config,
  });
  assert.equal(status, 200, JSON.stringify(body));
}

interface Invocation {
  status: string;
  done: boolean;
  result?: unknown;
  error: string | null;
  cold: boolean | null;
  version: number | null;
}

export async function readInvocation(service: Service, id: string): Promise<Invocation> {
  const { status, body } = await service.call<Invocation>('GET', `/invocations/${id}`);
  assert.equal(status, 200, JSON.stringify(body));
  return body;
}
