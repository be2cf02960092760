CREATE ROLE headgate LOGIN PASSWORD 'a-password';
CREATE DATABASE headgate OWNER headgate;
