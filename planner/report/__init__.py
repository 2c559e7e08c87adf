"""Answers for people: domain records to rich tables that read well at 80 columns."""
