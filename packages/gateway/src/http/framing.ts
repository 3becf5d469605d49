import { badRequest, quote } from '@releap/contract';
import type { RequestHead } from '../targets/target.ts';

/** Refuses what the server in the guest could read in another way than the gateway does. @throws ApiError 400 */
export function checkFraming({ url, headers, hosts }: RequestHead): void {
  if (!url.startsWith('/') && url !== '*') throw badRequest('the target of a request must be a path');
  if (hosts !== 1) throw badRequest('a request has one Host header');
  const coding = headers['transfer-encoding'];
  if (coding !== undefined && coding.toLowerCase() !== 'chunked')
    throw badRequest(`transfer-encoding ${quote(coding)} is not supported`);
}
