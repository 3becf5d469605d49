/** The operations on credits. */
import { CreditsQuery, CreditsRecord } from './credits.ts';
import { OrgParams } from './management.ts';
import type { ApiResource } from './platform/operation.ts';

export const creditsOperations = {
  getCredits: {
    method: 'GET',
    path: '/orgs/:id/credits',
    tag: 'Organizations',
    summary: 'Read the balance of an organization and the newest entries of its ledger',
    description:
      'Amounts are decimal strings of credits. Use is negative, grants are positive, and the balance is the sum of the ' +
      'whole ledger. [billing.md](billing.md) says what is charged.',
    security: 'management',
    params: OrgParams,
    query: CreditsQuery,
    items: 'ledger',
    success: { status: 200, response: { description: 'The record.', schema: CreditsRecord } },
    errors: { 404: 'There is no such organization, or the caller is not a member of it.' },
  },
} as const;

export const creditsResource = {
  tags: {},
  operations: creditsOperations,
  schemas: { Credits: CreditsRecord },
} as const satisfies ApiResource;
