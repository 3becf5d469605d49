-- An address counted as verified when the token said nothing about it. The next call of each user writes down what
-- their token says now.
alter table users alter column email_verified set default false;
update users set email_verified = false where email_verified;
